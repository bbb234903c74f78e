"""The loop gives what a plain training in torch gives, whatever its chunks and what it keeps of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emberge import Example, PerDataset
from emberge.training import BatchPlan, FitOptions
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, InfoNCE
from safetensors.torch import load_file

from tests.reference import train
from tests.support.fitting import run_fit
from tests.support.training_data import dataset, retrieval

# With a larger epsilon, a step is in proportion to its gradient, and so is the rounding of both.
RECIPE = train.Recipe(temperature=0.1, learning_rate=1e-2, warmup=2, epsilon=1e-2)


@pytest.mark.parametrize(("budget", "kept"), [(None, None), (60, 0), (60, 100)])
def test_a_training_is_that_of_the_reference(
    budget: int | None, kept: int | None, bert: Path, tmp_path: Path
) -> None:
    rows = [Example(row.anchor, row.positives[:1]) for row in retrieval().rows]
    data, sampler = (
        dataset("pairs", "retrieval", rows),
        BatchShuffle(batch_size=PerDataset(default=8)),
    )
    options = FitOptions(
        learning_rate=RECIPE.learning_rate,
        warmup_steps=RECIPE.warmup,
        adam_epsilon=RECIPE.epsilon,
        epochs=2,
        token_budget=budget,
        kept_tokens=kept,
    )
    told: list[float] = []
    run_fit(
        backbone=TextEncoder(),
        checkpoint=bert,
        datasets=[data],
        sampler=(sampler,),
        losses=PerDataset(default=(InfoNCE(temperature=RECIPE.temperature),)),
        options=options,
        folder=tmp_path / "out",
        work=tmp_path / "work",
        seed=0,
        metric=lambda name, value, _: told.append(value) if name == "loss" else None,
    )
    plan = BatchPlan({data.info: range(len(rows))}, (sampler,), seed=0, epochs=2)
    batches = [
        [(rows[row].anchor, rows[row].positives[0]) for row in plan[step].parts[0].rows]
        for step in range(plan.steps)
    ]
    losses, weights = train.train(bert, batches, RECIPE)
    assert told == pytest.approx(losses, rel=1e-5)
    trained = load_file(tmp_path / "out" / "model.safetensors")
    start = load_file(bert / "model.safetensors")
    for name, value in trained.items():
        assert torch.allclose(value, weights[name], atol=1e-5), name
    assert max((trained[name] - start[name]).abs().max() for name in trained) > 1e-2
