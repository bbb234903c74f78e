"""A training step of each kind of encoder beside sentence-transformers': the same rows, loss and thread.

    OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/kinds.py

Rows of all eight training sets of ../shared/data in turn, 32 of them, each with one negative: the positive
of another row. `multi_vector` and `cross_encoder` begin from all-MiniLM-L6-v2, `splade` from a random masked
model of its size. A step is forward, loss and backward in float32 without dropout; optimizers are the same
torch code and left out. The peers get their token ids for nothing, except the reranker, whose loss makes
them. Both sides run in turn, and medians of CPU time are compared. Losses must agree to 1e-5.

Measured on one thread of a shared 2-core EPYC (AVX-512), CPU seconds a step, ours and the peer's:

    multi_vector      7.0    16.5    2.4
    splade            8.3    49.9    6.0
    cross_encoder     4.8    14.2    3.0   (another machine of the kind)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Backbone, Example, Loss, PerDataset
from emberge.encoding import EncodePlan, activation_budget, encode_and_backward
from emberge.training import FitOptions, PlannedBatch, PlannedPart
from emberge.training.objective import Objective
from emberge.training.tables.batch_texts import TextSampling, draw_batch
from emberge.training.tables.example_table import build_table, sides
from emberge_encoder import CrossEncoder, MultiVector, Splade
from emberge_train import FLOPS, BinaryCrossEntropy, InfoNCE

from tests.benchmarks.training import _cpu, _pairs
from tests.support.training_data import dataset

ROUNDS = 3
SIZE = 32


@dataclass(frozen=True)
class Kind:
    """Our backbone and losses, and the peer's class and loss."""

    backbone: Backbone
    losses: tuple[Loss, ...]
    open_peer: Callable[[Path], Any]
    peer_loss: Callable[[Any], Any]


def _list_kinds() -> dict[str, Kind]:
    import sentence_transformers as st
    from sentence_transformers.cross_encoder import losses as pair_losses
    from sentence_transformers.multi_vector_encoder import losses as token_losses
    from sentence_transformers.sparse_encoder import losses as sparse_losses

    def open_by(stock: Any) -> Callable[[Path], Any]:
        return lambda folder: stock(str(folder), device="cpu", local_files_only=True)

    return {
        "multi_vector": Kind(
            MultiVector(),
            (InfoNCE(temperature=1),),
            open_by(st.MultiVectorEncoder),
            token_losses.MultiVectorMultipleNegativesRankingLoss,
        ),
        "splade": Kind(
            Splade(),
            (InfoNCE(temperature=1), FLOPS(documents=3e-3, queries=5e-3)),
            open_by(st.SparseEncoder),
            lambda model: sparse_losses.SpladeLoss(
                model,
                sparse_losses.SparseMultipleNegativesRankingLoss(model, scale=1.0),
                document_regularizer_weight=3e-3,
                query_regularizer_weight=5e-3,
            ),
        ),
        "cross_encoder": Kind(
            CrossEncoder(),
            (BinaryCrossEntropy(),),
            open_by(st.CrossEncoder),
            pair_losses.BinaryCrossEntropyLoss,
        ),
    }


def _write_start(kind: str, minilm: Path, folder: Path) -> Path:
    """Return the folder from which both sides begin, as the stock class reads it."""
    if kind != "splade":
        backbone = MultiVector() if kind == "multi_vector" else CrossEncoder()
        backbone.load(minilm, device="cpu", dtype="float32").save(folder)
        return folder
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(str(minilm))
    AutoModelForMaskedLM.from_config(config).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(minilm)).save_pretrained(str(folder))
    return folder


class Ours:
    """Our step on rows of a query, a positive and a negative."""

    def __init__(self, kind: Kind, model: Path, rows: Sequence[Example], store: Path) -> None:
        self.encoder = kind.backbone.load(model, device="cpu", dtype="float32")
        self.encoder.module.eval()
        data = dataset("rows", "retrieval", rows)
        table = build_table(data, self.encoder, sides(data, self.encoder, FitOptions()), store)
        self.is_of_pairs = self.encoder.similarity.kind == "pair_score"
        part = PlannedPart("rows", np.arange(len(rows)), not self.is_of_pairs)
        self.batch = PlannedBatch(0, 0, 0, (part,))
        self.tables = {"rows": table}
        self.objective = Objective(PerDataset(default=kind.losses), [table.info], "cpu")  # type: ignore[arg-type]
        budget = activation_budget(self.encoder.module, torch.device("cpu"))
        self.plan = EncodePlan(2048, kept_bytes=budget, dropout=False)

    def step(self) -> float:
        self.encoder.module.zero_grad()
        columns = {"positive", "negative"} | (set() if self.is_of_pairs else {"anchor"})
        drawn = draw_batch(
            self.batch,
            self.tables,
            TextSampling(negatives=1),
            unique=True,
            embeds=lambda _: frozenset(columns),
        )
        objective = drawn.objective(self.objective, torch.device("cpu"), self.encoder.similarity)
        passed = encode_and_backward(self.encoder, drawn.texts, objective, self.plan, seed=0)
        return passed.loss.item()


class Peer:
    """sentence-transformers' own loss on the same rows."""

    def __init__(self, kind: Kind, model: Path, rows: Sequence[Example]) -> None:
        self.model = kind.open_peer(model)
        self.loss = kind.peer_loss(self.model)
        self.model.eval()
        for module in self.model.modules():  # out of training, its pooling cannot be differentiated
            if type(module).__name__ == "SpladePooling":
                module.train()
        self.columns = [
            [row.anchor for row in rows],
            [row.positives[0] for row in rows],
            [row.negatives[0] for row in rows],
        ]
        self.is_of_pairs = isinstance(kind.backbone, CrossEncoder)
        if not self.is_of_pairs:
            self.features = [
                self.model.preprocess(column, task=side) | {"task": side}
                for column, side in zip(
                    self.columns, ("query", "document", "document"), strict=True
                )
            ]

    def step(self) -> float:
        self.model.zero_grad()
        if self.is_of_pairs:
            queries, positives, negatives = self.columns
            truth = torch.tensor([1.0] * len(queries) + [0.0] * len(queries))
            value = self.loss([queries * 2, positives + negatives], truth)
        else:
            value = self.loss([dict(column) for column in self.features], None)
        if isinstance(value, dict):
            value = torch.stack(list(value.values())).sum()
        value.backward()
        return float(value.detach())


@pytest.mark.benchmark
@pytest.mark.parametrize("name", ["multi_vector", "splade", "cross_encoder"])
def test_a_step_of_each_kind_beside_sentence_transformers(
    minilm: Path, shared_data: Path, tmp_path: Path, name: str
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = _pairs(shared_data, "mixed", 2 * SIZE)
        rows = [
            Example(anchor, (positive,), (other,))
            for (anchor, positive), (_, other) in zip(pairs[:SIZE], pairs[SIZE:], strict=True)
        ]
        kind = _list_kinds()[name]
        model = _write_start(name, minilm, tmp_path / "start")
        ours, peer = Ours(kind, model, rows, tmp_path / "store"), Peer(kind, model, rows)
        assert ours.step() == pytest.approx(peer.step(), rel=1e-5)
        times = [(_cpu(ours.step), _cpu(peer.step)) for _ in range(ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"\n{name}, batch {SIZE}: ours {mine:.2f} s, sentence-transformers {theirs:.2f} s of CPU a step: "
        f"ratio {theirs / mine:.2f}"
    )
