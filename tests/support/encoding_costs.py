"""A measured cost of embedding, as files of evaluations have it."""

from __future__ import annotations

from emberge.evaluating import EncodingCost

COST = EncodingCost(
    dimension=8,
    index_bytes=32.0,
    milliseconds=1.5,
    cpu_milliseconds=3.0,
    texts_per_second=800.0,
    texts_per_cpu_second=400.0,
    machine="a processor",
    threads=2,
    queries=4,
    texts=9,
    rounds=3,
)
