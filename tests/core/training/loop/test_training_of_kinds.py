"""Trainings of sparse, token and pair encoders: recomputed, on two ranks, and killed, as those of vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge import Backbone, DataError, Example, Loss, PerDataset
from emberge.training import FitOptions
from emberge_encoder import CrossEncoder, MultiVector, Splade
from emberge_train import FLOPS, BatchShuffle, BinaryCrossEntropy, InfoNCE
from sentence_transformers import CrossEncoder as StockCrossEncoder
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from tests.support import ranked_fit, tiny
from tests.support.fitting import run_fit
from tests.support.ranked_fit import Training
from tests.support.training_data import dataset, retrieval

KINDS: Mapping[str, tuple[Backbone, tuple[Loss, ...]]] = {
    "colbert": (MultiVector(), (InfoNCE(temperature=1),)),
    "splade": (Splade(), (InfoNCE(temperature=1), FLOPS(documents=0.05, queries=0.05))),
    "reranker": (CrossEncoder(), (BinaryCrossEntropy(), InfoNCE(temperature=1, weight=0.5))),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return tiny.kinds(tmp_path_factory.mktemp("kinds"))


def judged_rows(size: int = 24) -> list[Example]:
    """Rows that all have a negative of their own."""
    rows = retrieval(2 * size).rows
    return [row for row in rows if row.negatives]


def arguments(folders: Mapping[str, Path], name: str, **more: Any) -> dict[str, Any]:
    backbone, losses = KINDS[name]
    options: dict[str, Any] = {
        **{"epochs": 2, "learning_rate": 1e-3, "token_budget": 64, "save_steps": 2},
        **{"hard_negatives": 1, "logging_steps": 1, "dropout": False},
    }
    options |= {key: more.pop(key) for key in [*more] if key == "kept_tokens"}
    return {
        "backbone": backbone,
        "checkpoint": folders[name],
        "datasets": [dataset("find", "retrieval", judged_rows())],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "losses": PerDataset(default=losses),
        "options": FitOptions(**options),
        "seed": 0,
        **more,
    }


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_learns_and_loads_in_its_stock_class(
    folders: Mapping[str, Path], name: str, tmp_path: Path
) -> None:
    losses: list[float] = []

    def metric(of: str, value: float, step: int) -> None:
        if of == "loss":
            losses.append(value)

    given = arguments(folders, name)
    given["options"] = dataclasses.replace(given["options"], epochs=6, learning_rate=3e-3)
    run_fit(**given, folder=tmp_path / "out", work=tmp_path / "work", metric=metric)
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    rows = judged_rows()
    kind: Any = {
        "colbert": MultiVectorEncoder,
        "splade": SparseEncoder,
        "reranker": StockCrossEncoder,
    }[name]
    model = kind(str(tmp_path / "out"), device="cpu", local_files_only=True)
    asked = [row.anchor for row in rows]
    columns = [[row.positives[0] for row in rows], [row.negatives[0] for row in rows]]
    if name == "reranker":
        fits, misses = (model.predict(list(zip(asked, column, strict=True))) for column in columns)
    else:
        queries = model.encode_query(asked)
        fits, misses = (
            model.similarity_pairwise(queries, model.encode_document(column)) for column in columns
        )
    assert float((fits > misses).mean(dtype=None if name == "reranker" else fits.dtype)) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["colbert", "reranker"])
def test_two_ranks_learn_as_one(folders: Mapping[str, Path], name: str, tmp_path: Path) -> None:
    losses = []
    for ranks in (1, 2):
        training = Training(tmp_path / str(ranks), arguments(folders, name))
        (found,) = ranked_fit.run([training], tmp_path / f"{ranks}.pkl", ranks)
        losses.append(found["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_rows_without_anything_that_does_not_fit_are_refused(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    given = arguments(folders, "reranker", losses=PerDataset(default=(BinaryCrossEntropy(),)))
    given["datasets"] = [retrieval()]
    with pytest.raises(DataError, match=r"row 1 has no negative of its own and no score.*20 of 40"):
        run_fit(**given, folder=tmp_path / "out", work=tmp_path / "work")
