"""Losses on held-out data: the loss that a training would have there, and what may be done with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emberge import (
    DataEntry,
    DataRef,
    PerDataset,
    Plugins,
    TaskInfo,
    TaskScore,
)
from emberge.training import Session
from emberge_encoder import TextEncoder
from emberge_evaluate import mean_loss
from emberge_evaluate.mean_loss import MeanLoss
from emberge_evaluate.scoring import plan_tasks, score_model
from emberge_train import BatchShuffle, InfoNCE
from sentence_transformers import SentenceTransformer

from tests.support.bench import Bench, model_at
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.result_folders import artifact_of
from tests.support.training_data import retrieval, similarity

HELD = (
    "{mean_loss: {data: [{path: ./find.jsonl, task: retrieval}, {path: ./alike.jsonl, task: sts}], "
    "loss: {default: {infonce: {temperature: 0.1}}, by_task: {sts: cosent}}, "
    "sampler: {batch_shuffle: {batch_size: 16, tail: keep}}}}"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with two sets of 16 and 24 rows."""
    for made in (retrieval(16), similarity()):
        rows = [{"anchor": one.anchor, "positive": one.positives[0]} for one in made.rows]
        for row, one in zip(rows, made.rows, strict=True):
            row |= {"score": one.positive_scores[0]} if one.positive_scores else {}  # type: ignore[dict-item]
        (tmp_path / f"{made.info.name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def select(models: Sequence[Path | str], more: str = "") -> str:
    listed = ", ".join(map(str, models))
    options = f"models: [{listed}], evaluators: {HELD}, metric: loss, top: 1{more}"
    return f"steps: {{best: {{select: {{{options}}}}}}}"


def info_nce(model: Path, place: Path) -> float:
    """The loss of all rows as one batch, from another library's embeddings."""
    rows = [json.loads(line) for line in (place / "find.jsonl").read_text().splitlines()]
    encode = SentenceTransformer(str(model), device="cpu").encode
    sides = [torch.tensor(encode([row[k] for row in rows])) for k in ("anchor", "positive")]
    found = sides[0].double() @ sides[1].double().T / 0.1
    texts = [row["positive"] for row in rows]
    for i, text in enumerate(texts):  # equal texts are no negatives
        for j, other in enumerate(texts):
            if i != j and text == other:
                found[i, j] = -torch.inf
    return float(torch.nn.functional.cross_entropy(found, torch.arange(len(rows))))


def test_a_data_sets_loss_is_that_of_its_batches(
    berts: list[Path], plugins: Plugins, place: Path
) -> None:
    made = run_checked(place, select(berts, ", tasks: find"), plugins)["best"]
    expected = {bert.name: info_nce(bert, place) for bert in berts}
    artifact = artifact_of(made)
    (chosen,) = artifact.details["chosen"].values()
    assert chosen["model"] == min(expected, key=expected.__getitem__)
    # Embeddings of both are float32 and of length 1, over a temperature of 0.1.
    assert chosen["value"] == pytest.approx(expected[chosen["model"]], abs=1e-5)
    (figure,) = artifact.figures
    drawn = figure.heat_map
    assert drawn is not None
    shown = {name: row[0] for name, row in zip(drawn.rows, drawn.values, strict=True)}
    assert shown == pytest.approx(expected, abs=6e-5), "four digits"


def test_a_loss_is_no_score(berts: list[Path], plugins: Plugins, place: Path) -> None:
    def errors(text: str) -> str:
        return find_faults(place, text, plugins)

    compared = f"steps: {{all: {{evaluate: {{models: {berts[0]}, evaluators: {HELD}}}}}}}"
    assert errors(compared) == ""  # losses are compared with losses
    unfit = select(berts).replace("sts: cosent", "retrieval: cosent")
    assert "needs scores" in errors(unfit)
    assert "metric: loss" in errors(select(berts).replace("metric: loss", "metric: score"))


def loss_of(evaluator: MeanLoss, model: Path, workspace: Bench) -> float:
    plans = plan_tasks([evaluator], workspace)
    (score,) = score_model(model_at(model), plans, workspace, name="a").values()
    return score.score


def build_evaluator(folder: Path) -> MeanLoss:
    """Return the mean loss of 24 rows with a negative, in batches of 8."""
    rows = [
        {"anchor": one.anchor, "positive": one.positives[0], "negative": one.positives[1]}
        for one in retrieval(24).rows
    ]
    path = folder / "find.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MeanLoss(
        data=(DataEntry(path=DataRef(str(path)), task="retrieval"),),
        loss=PerDataset(default=(InfoNCE(),)),
        sampler=(BatchShuffle(batch_size=PerDataset(default=8), tail="keep"),),
        backbone=TextEncoder(),
    )


def test_a_measured_loss_sends_no_gradient_into_the_model(
    berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    score = mean_loss._score_batches

    def watched(session: Session, task: TaskInfo) -> TaskScore:
        for name, parameter in session.parameters.items():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: reached.append(name))
        return score(session, task)

    monkeypatch.setattr(mean_loss, "_score_batches", watched)
    assert loss_of(build_evaluator(tmp_path), berts[0], Bench(tmp_path / "out")) > 0
    assert reached == []


def test_a_stored_loss_is_taken_only_for_the_same_loss(berts: list[Path], tmp_path: Path) -> None:
    evaluator = build_evaluator(tmp_path)
    before, after, alone = (Bench(tmp_path / root) for root in ("shared", "shared", "alone"))
    other = replace(evaluator, data=(replace(evaluator.data[0], negatives="hard_only"),))
    first = loss_of(evaluator, berts[0], before)
    assert loss_of(other, berts[0], after) == loss_of(other, berts[0], alone) != first
