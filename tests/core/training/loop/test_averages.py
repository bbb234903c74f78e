"""The mean of a training's last models: its coefficients, and what is saved, scored and resumed with it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import PerDataset
from emberge.encoding import PassResult
from emberge.errors import EmbergeError
from emberge.ranks import ALONE
from emberge.training import (
    Averaging,
    EarlyStopping,
    FitOptions,
    FitResult,
    PlannedBatch,
    SaveClock,
    train,
)
from emberge.training.loop.averages import TrajectoryMean, measure_damping
from emberge.training.loop.optimizer import learning_rate_factor
from emberge_encoder import Lora, TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.fitting import run_fit
from tests.support.pulls import Pull
from tests.support.training_data import retrieval, similarity

Array = NDArray[np.float64]
STEPS = 13
KINDS = [
    Averaging(share=0.5),
    Averaging(steps=13),
    Averaging(share=0.5, every=3),
    Averaging(steps=9, weights="cosine"),
    Averaging(steps=9, weights="cosine", every=2),
    Averaging(steps=8, weights="ema", decay=0.7),
    Averaging(steps=8, weights="ema", decay=0.95, every=3),
]


def averaged_steps(averaging: Averaging, steps: int) -> list[int]:
    """The steps, from 1, whose models are averaged: back from the last one, as far as the window goes."""
    share = 0.2 if averaging.share is None else averaging.share
    window = averaging.steps or math.ceil(share * steps)
    return list(range(steps, steps - window, -averaging.every))[::-1]


def coefficients(averaging: Averaging, count: int) -> Array:
    """Those of the paper, written out: d_k - d_(k+1), or falling by the decay."""
    if averaging.weights == "ema":
        falling = averaging.decay ** np.arange(count - 1, -1, -1.0)
        return np.asarray(falling / falling.sum())
    left = np.arange(count, -1, -1.0) / count
    factors = left if averaging.weights == "linear" else 0.5 * (1 - np.cos(np.pi * left))
    return np.asarray(factors[:-1] - factors[1:])


class Walk(Pull):
    """A matrix and a number that are pulled to other targets at each step."""

    ranks = ALONE

    def __init__(self, scores: Mapping[int, float] | None = None) -> None:
        draw = torch.Generator().manual_seed(3)
        self.targets = torch.randn((STEPS, 4, 3), generator=draw)
        self.matrix = torch.zeros((4, 3), requires_grad=True)
        self.number = torch.ones((), requires_grad=True)
        self.scores = scores or {}
        self.scored: dict[int, Tensor] = {}
        self.after: list[dict[str, Tensor]] = []

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return {"matrix": self.matrix, "number": self.number}

    @property
    def steps(self) -> int:
        return STEPS

    def backward(self, batch: PlannedBatch) -> PassResult:
        loss = (self.number * self.matrix - self.targets[batch.step]).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return PassResult(loss.detach(), tokens=1, padded=1)

    def score(self, step: int) -> float:
        self.scored[step] = self.matrix.detach().clone()
        return self.scores[step]


def walked(
    walk: Walk, work: Path, *, last: int = STEPS, **options: Any
) -> tuple[FitResult, list[dict[str, Tensor]]]:
    """Train to the end, or to a kill after a step; the result, and the parameters after each step."""
    after: list[dict[str, Tensor]] = []
    rule = options.pop("rule", None)

    def progress(done: int, _: int, unit: str, note: str = "") -> None:
        if note == "scoring":
            return
        after.append({name: p.detach().clone() for name, p in walk.parameters.items()})
        if done > last:
            raise KeyboardInterrupt

    result = train(
        walk,
        FitOptions(
            **{"learning_rate": 0.1, "schedule": "constant", "warmup_ratio": 0.0, **options}
        ),
        folder=None,
        work=work,
        progress=progress,
        early_stopping=rule,
        clock=SaveClock(seconds=0.0, share=0.0),
    )
    return result, after


# ── coefficients ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("averaging", KINDS, ids=str)
def test_the_result_is_the_mean_of_all_models_of_the_window(
    averaging: Averaging, tmp_path: Path
) -> None:
    walk = Walk()
    _, after = walked(walk, tmp_path, average=averaging)
    steps = averaged_steps(averaging, STEPS)
    weights = coefficients(averaging, len(steps))
    assert steps[-1] == STEPS
    assert weights.sum() == pytest.approx(1)
    for name, mean in walk.parameters.items():
        models = np.stack([after[step - 1][name].double().numpy() for step in steps])
        wanted = np.tensordot(weights, models, 1)
        assert np.abs(mean.detach().double().numpy() - wanted).max() < 1e-6
    assert not torch.equal(walk.matrix, after[-1]["matrix"])


def test_a_linear_decay_is_the_plain_mean() -> None:
    assert coefficients(Averaging(), 7) == pytest.approx(np.full(7, 1 / 7))


@pytest.mark.parametrize("weights", ["linear", "cosine"])
@pytest.mark.parametrize("every", [1, 3])
def test_each_update_counts_as_if_its_rate_had_been_decayed(weights: Any, every: int) -> None:
    """With SGD and gradients that do not depend on the parameters this is a decayed training, exactly."""
    steps, window = 20, 12
    updates = np.random.default_rng(0).normal(size=(steps, 5))
    parameter = torch.zeros(5, dtype=torch.float64)
    averaging = Averaging(steps=window, weights=weights, every=every)
    mean = TrajectoryMean(averaging, steps, {"w": parameter}, lambda: None)
    for step in range(steps):
        parameter += torch.tensor(updates[step])
        mean.add(step + 1)
    stairs = window // every
    factors = [1.0] * (steps - window) + [
        learning_rate_factor(step // every, stairs, 0, weights) for step in range(window)
    ]
    wanted = (np.array(factors)[:, None] * updates).sum(0)
    assert mean.mean["w"].numpy() == pytest.approx(wanted, abs=1e-12)


def test_a_linear_mean_is_sgd_with_a_linear_decay_where_gradients_are_constant() -> None:
    gradient, rate, steps = np.array([0.5, -2.0, 3.0]), 0.1, 10
    parameter = torch.zeros(3, dtype=torch.float64)
    mean = TrajectoryMean(Averaging(share=1.0), steps, {"w": parameter}, lambda: None)
    decayed = np.zeros(3)
    for step in range(steps):
        parameter -= torch.tensor(rate * gradient)
        mean.add(step + 1)
        decayed -= rate * learning_rate_factor(step, steps, 0, "linear") * gradient
    assert mean.mean["w"].numpy() == pytest.approx(decayed, abs=1e-14)


def test_what_a_second_decay_costs() -> None:
    """Σ d² against Σ d over a whole training of linear decay is two thirds."""
    options = FitOptions(warmup_ratio=0.0, average=Averaging(share=1.0))
    assert measure_damping(options, 3000) == pytest.approx(1 / 3, abs=1e-3)
    constant = dataclasses.replace(options, schedule="constant", average=Averaging(share=0.1))
    assert measure_damping(constant, 3000) == pytest.approx(1 / 2, abs=2e-3)
    assert measure_damping(FitOptions(), 3000) == 0
    # A plain mean of every third model leaves the last two steps of each stair whole.
    stairs = dataclasses.replace(constant, average=Averaging(steps=9, every=3))
    assert measure_damping(stairs, 30) == pytest.approx(1 - (3 + 2 + 1) / 9)


# ── trainings ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("last", [3, 8, 10, 12])
def test_a_killed_training_goes_on_to_the_same_mean(last: int, tmp_path: Path) -> None:
    """Killed before the window, in it, between two averaged models, and before the last step."""
    whole, killed, again = Walk(), Walk(), Walk()
    averaging = Averaging(steps=7, weights="cosine", every=2)
    walked(whole, tmp_path / "whole", average=averaging)
    with pytest.raises(KeyboardInterrupt):
        walked(killed, tmp_path / "killed", last=last, average=averaging)
    _, after = walked(again, tmp_path / "killed", average=averaging)
    assert len(after) == STEPS - last
    for name, value in again.parameters.items():
        assert torch.equal(value, whole.parameters[name])


def test_scores_are_those_of_the_mean_and_the_training_goes_on_from_the_models(
    tmp_path: Path,
) -> None:
    plain = Walk()
    _, wanted = walked(plain, tmp_path / "plain")
    walk = Walk({step: float(step) for step in range(1, STEPS + 1)})
    rule = EarlyStopping(2, score=None, identity="", best=False)
    averaging = Averaging(steps=6, every=2)
    _, after = walked(walk, tmp_path / "walk", average=averaging, rule=rule)
    for found, step in zip(after, wanted, strict=True):
        assert torch.equal(found["matrix"], step["matrix"])
    means = {9: [9], 11: [9, 11], 13: [9, 11, 13]}
    for step, matrix in walk.scored.items():
        averaged = means[max(s for s in means if s <= step)] if step >= 9 else [step]
        models = torch.stack([wanted[s - 1]["matrix"].double() for s in averaged])
        assert torch.allclose(matrix.double(), models.mean(0), atol=1e-6), step
    assert torch.equal(walk.matrix, walk.scored[13])


def test_the_best_of_the_means_is_the_result(tmp_path: Path) -> None:
    walk = Walk({2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4, 10: 0.9, 12: 0.5, 13: 0.6})
    rule = EarlyStopping(2, score=None, identity="")
    result, _ = walked(walk, tmp_path, average=Averaging(steps=8), rule=rule)
    assert result.result_step == 10
    assert torch.equal(walk.matrix, walk.scored[10])


class Sphere(Walk):
    """A matrix of length one, of which means are shorter."""

    def project(self) -> None:
        with torch.no_grad():
            self.matrix.div_(self.matrix.norm())


def test_a_mean_is_moved_to_allowed_values_and_the_training_is_not(tmp_path: Path) -> None:
    plain, scored = Sphere(), Sphere(dict.fromkeys(range(1, STEPS + 1), 0.0))
    averaging = Averaging(steps=8)
    _, wanted = walked(plain, tmp_path / "plain", average=averaging)
    rule = EarlyStopping(1, score=None, identity="", best=False)
    _, after = walked(scored, tmp_path / "scored", average=averaging, rule=rule)
    assert torch.equal(after[-1]["matrix"], wanted[-1]["matrix"])
    assert torch.equal(scored.matrix, plain.matrix)
    models = torch.stack([one["matrix"].double() for one in wanted[-8:]])
    mean = models.mean(0)
    assert mean.norm() < 0.999
    assert torch.allclose(plain.matrix.double(), mean / mean.norm(), atol=1e-6)


# ── models ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout, so that random numbers matter."""
    folder = tmp_path_factory.mktemp("shaky") / "m"
    tiny.checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.1}))
    return folder


def fitted(model: Path, root: Path, averaging: Averaging | None, **changes: Any) -> FitResult:
    options: dict[str, Any] = {"learning_rate": 1e-3, "token_budget": 80, "schedule": "constant"}
    options |= {"average": averaging, "max_steps": 10, "save_steps": 1, "keep_last": 10}
    job: dict[str, Any] = {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "losses": PerDataset(default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}),
        "folder": root / "out",
        "work": root / "work",
        "seed": 0,
    }
    return run_fit(**{**job, "options": FitOptions(**options), **changes})


def mean_of_kept(root: Path, steps: Sequence[int], file: str) -> dict[str, Tensor]:
    kept = [load_file(root / f"out/checkpoints/step-{step}" / file) for step in steps]
    return {name: torch.stack([model[name].double() for model in kept]).mean(0) for name in kept[0]}


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "adapter"])
def test_checkpoints_are_the_models_and_the_result_is_their_mean(
    lora: Lora | None, shaky: Path, tmp_path: Path
) -> None:
    """An adapter's factors are averaged as a decay would slow them: each by itself."""
    file = "model.safetensors" if lora is None else "adapter_model.safetensors"
    backbone = TextEncoder(lora=lora)
    fitted(shaky, tmp_path / "mean", Averaging(share=0.5), backbone=backbone)
    fitted(shaky, tmp_path / "plain", None, backbone=backbone)
    for step in (1, 10):
        path = f"out/checkpoints/step-{step}/{file}"
        found, raw = (load_file(tmp_path / name / path) for name in ("mean", "plain"))
        assert all(torch.equal(found[name], raw[name]) for name in raw)
    result = load_file(tmp_path / "mean/out" / file)
    last = load_file(tmp_path / "plain/out" / file)
    wanted = mean_of_kept(tmp_path / "mean", range(6, 11), file)
    assert any((result[name] - last[name]).abs().max() > 1e-4 for name in wanted)
    for name, mean in wanted.items():
        assert torch.allclose(result[name].double(), mean, atol=1e-6), name


def test_a_killed_fit_goes_on_to_the_same_bytes(shaky: Path, tmp_path: Path) -> None:
    def kill(done: int, _: int, unit: str, note: str = "") -> None:
        if done == 8 and unit == "steps":
            raise KeyboardInterrupt

    averaging = Averaging(steps=6, weights="ema", decay=0.8)
    fitted(shaky, tmp_path / "whole", averaging)
    with pytest.raises(KeyboardInterrupt):
        fitted(shaky, tmp_path / "killed", averaging, progress=kill)
    fitted(shaky, tmp_path / "killed", averaging)
    files = [
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "whole/out", tmp_path / "killed/out")
    ]
    assert files[0] == files[1]


def test_a_written_model_that_is_scored_is_the_mean(shaky: Path, tmp_path: Path) -> None:
    seen: dict[int, bytes] = {}

    def score(folder: Path, step: int) -> float:
        seen[step] = (folder / "model.safetensors").read_bytes()
        return float(step)

    rule = EarlyStopping(5, score, "", best=False)
    fitted(shaky, tmp_path, Averaging(steps=4), early_stopping=rule)
    raw = tmp_path / "out/checkpoints"
    assert seen[5] == (raw / "step-5/model.safetensors").read_bytes()
    assert seen[10] == (tmp_path / "out/model.safetensors").read_bytes()
    assert seen[10] != (raw / "step-10/model.safetensors").read_bytes()


# ── refused ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("averaging", "fix"),
    [
        (Averaging(steps=14), "lower steps"),
        (Averaging(steps=6, every=7), "lower every"),
        (Averaging(share=0.01), "lengthen the window"),
        (Averaging(steps=6, every=6), "lengthen the window, or lower every"),
    ],
    ids=str,
)
def test_a_window_that_does_not_fit_is_refused_before_a_step(
    averaging: Averaging, fix: str, tmp_path: Path
) -> None:
    walk = Walk()
    with pytest.raises(EmbergeError, match=fix):
        walked(walk, tmp_path, average=averaging)
    assert torch.equal(walk.matrix, torch.zeros(4, 3))


def test_a_fit_refuses_its_window_before_it_loads_the_model(shaky: Path, tmp_path: Path) -> None:
    notes: list[str] = []

    def progress(done: int, total: int, unit: str, note: str = "") -> None:
        notes.append(note)

    with pytest.raises(EmbergeError, match="lower steps"):
        fitted(shaky, tmp_path, Averaging(steps=11), progress=progress)
    assert "loading the model" not in notes


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"share": 0.2, "steps": 5}, "share or steps"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"steps": 0}, "steps"),
        ({"every": 0}, "every"),
        ({"weights": "ema", "decay": 1.0}, "decay"),
        ({"weights": "ema", "decay": 0.0}, "decay"),
        ({"weights": "ema", "decay": float("nan")}, "decay"),
    ],
)
def test_options_out_of_their_limits_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Averaging(**options)


def test_quantised_parameters_have_no_mean(tmp_path: Path) -> None:
    walk = Walk()
    walk.matrix = torch.zeros((4, 3)).to(torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(EmbergeError, match=r"'matrix'.*float8_e4m3fn.*float32"):
        walked(walk, tmp_path, average=Averaging())
