"""The progress of parts says which part of how many, and never falls back."""

from __future__ import annotations

from typing import Any

from emberge.evaluating import PartProgress


def told_by(noun: str, count: int) -> tuple[PartProgress, list[tuple[Any, ...]]]:
    told: list[tuple[Any, ...]] = []
    return PartProgress(lambda *report: told.append(report), noun, count), told


def test_the_note_says_which_part_of_how_many() -> None:
    parts, told = told_by("task", 3)
    parts.begin("scifact")
    parts.report(0.5, "queries")
    parts.end()
    parts.begin("nfcorpus")
    assert told == [
        (0, 3, "tasks", "task 1 of 3: scifact"),
        (0.5, 3, "tasks", "task 1 of 3: scifact · queries"),
        (1, 3, "tasks", "task 1 of 3: scifact"),
        (1, 3, "tasks", "task 2 of 3: nfcorpus"),
    ]


def test_it_never_falls_back() -> None:
    parts, told = told_by("set", 2)
    for name in "ab":
        parts.begin(name)
        for share in (0.2, 0.9, 0.1, 1.5, -1):  # as when a part counts several things
            parts.report(share)
        parts.end()
    done = [report[0] for report in told]
    assert done == sorted(done)
    assert done[-1] == 2
    assert max(report[0] for report in told if "set 1" in report[3]) == 1


def test_what_comes_before_the_first_part_counts_as_nothing_of_it() -> None:
    parts, told = told_by("task", 2)
    parts.report(0, "loading")
    assert told == [(0, 2, "tasks", "loading")]
