"""A training step beside sentence-transformers': the same rows, model, loss and thread.

    OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/training.py

all-MiniLM-L6-v2, float32, dropout 0, real question–passage pairs of ../shared/data. A step is forward, loss
and backward; optimizers are the same torch code and left out. The peers get their token ids for nothing.
Both sides run in turn, and medians of CPU time are compared. Loss and gradient must agree.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from gzip import open as open_gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Example, PerDataset, TextEmbedder
from emberge.training.batches import Draw, draw_batch
from emberge.training.encode import EncodePlan, encode_and_backward
from emberge.training.memory import activation_budget
from emberge.training.objective import Objective
from emberge.training.plan import PlannedBatch, PlannedPart
from emberge.training.table import Side, build_table
from emberge_standard.backbones.text_encoder import TextEncoder
from emberge_standard.losses.infonce import InfoNCE

from tests.training_data import dataset

ROUNDS = 3


def _pairs(folder: Path, count: int) -> list[tuple[str, str]]:
    with open_gzip(folder / "train" / "squad.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    return [(row["query"], row["pos"][0]) for row in rows]


class Ours:
    """Our step on the first `size` pairs."""

    def __init__(self, model: Path, pairs: list[tuple[str, str]], store: Path) -> None:
        self.encoder = TextEncoder().load(model, device="cpu", dtype="float32")
        self.encoder.module.eval()
        rows = [Example(anchor, (positive,)) for anchor, positive in pairs]
        table = build_table(
            dataset("squad", "retrieval", rows), self.encoder, (Side("", None),) * 2, store
        )
        part = PlannedPart("squad", np.arange(len(rows)), True)
        self.batch = PlannedBatch(0, 0, 0, (part,))
        self.tables = {"squad": table}
        losses = PerDataset(default=(InfoNCE(temperature=0.05),))
        self.objective = Objective(losses, [table.info], "cpu")  # type: ignore[arg-type]
        budget = activation_budget(self.encoder.module, torch.device("cpu"))
        self.plan = EncodePlan(2048, kept_bytes=budget, dropout=False)

    def step(self) -> tuple[float, torch.Tensor]:
        self.encoder.module.zero_grad()
        drawn = draw_batch(self.batch, self.tables, Draw(), unique=True)
        passed = encode_and_backward(
            self.encoder,
            drawn.texts,
            drawn.objective(self.objective, torch.device("cpu")),
            self.plan,
            seed=0,
        )
        named = dict(self.encoder.module.named_parameters())
        return passed.loss.item(), _gradient(named, "trunk.embeddings.word_embeddings.weight")


class Peer:
    """sentence-transformers' own loss on the same pairs, tokens made beforehand."""

    def __init__(self, model: Path, pairs: list[tuple[str, str]], mini_batch: int | None) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses

        self.model = SentenceTransformer(str(model), device="cpu")
        self.model.eval()
        if mini_batch is None:
            self.loss: Any = losses.MultipleNegativesRankingLoss(self.model)
        else:
            self.loss = losses.CachedMultipleNegativesRankingLoss(
                self.model, mini_batch_size=mini_batch
            )
        self.columns = [self.model.preprocess(list(column)) for column in zip(*pairs, strict=True)]

    def step(self) -> tuple[float, torch.Tensor]:
        self.model.zero_grad()
        value = self.loss([dict(column) for column in self.columns], None)
        value.backward()
        return value.item(), _gradient(
            dict(self.model.named_parameters()), "embeddings.word_embeddings.weight"
        )


def _gradient(named: dict[str, torch.nn.Parameter], ending: str) -> torch.Tensor:
    (found,) = (p.grad for n, p in named.items() if n.endswith(ending))
    assert found is not None
    return found.clone()


def _cpu(step: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    step()
    return time.process_time() - start


@pytest.mark.benchmark
@pytest.mark.parametrize(("size", "mini_batch"), [(32, None), (128, 32), (128, 8)], ids=str)
def test_a_step_beside_sentence_transformers(
    minilm: Path, shared_data: Path, tmp_path: Path, size: int, mini_batch: int | None
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = _pairs(shared_data, size)
        ours, peer = Ours(minilm, pairs, tmp_path), Peer(minilm, pairs, mini_batch)
        (loss, gradient), (expected, reference) = ours.step(), peer.step()
        assert loss == pytest.approx(expected, rel=1e-5)
        assert (gradient - reference).abs().max() <= 1e-4 * reference.abs().max()
        times = [(_cpu(ours.step), _cpu(peer.step)) for _ in range(ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    name = "MNRL" if mini_batch is None else f"cached MNRL, mini-batch {mini_batch}"
    print(
        f"\nbatch {size}: ours {mine:.2f} s, {name} {theirs:.2f} s of CPU a step: "
        f"ratio {theirs / mine:.2f}"
    )


@pytest.mark.benchmark
def test_what_the_token_cache_saves(minilm: Path, shared_data: Path, tmp_path: Path) -> None:
    texts = [text for pair in _pairs(shared_data, 1500) for text in pair]
    encoder = TextEncoder().load(minilm, device="cpu", dtype="float32")
    made = [_cpu(lambda: encoder.tokenise(texts, prompt="", max_length=None)) for _ in range(3)]
    TextEmbedder(encoder, store=tmp_path)._tokens(texts, "", None)
    found = [
        _cpu(lambda: TextEmbedder(encoder, store=tmp_path)._tokens(texts, "", None))
        for _ in range(3)
    ]
    embedded = _cpu(lambda: TextEmbedder(encoder).embed(texts[:100]))
    print(
        f"\n{len(texts)} texts: tokenised in {min(made):.3f} s, found in {min(found):.3f} s of CPU; "
        f"embedding them takes about {embedded * len(texts) / 100:.0f} s"
    )
