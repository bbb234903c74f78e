"""Anything with parameters, batches and a backward pass trains in the one loop: here a vector."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import TrainingError
from emberge.encoding import PassResult
from emberge.ranks import SINGLE_RANK, RankGroup
from emberge.training import (
    EarlyStopping,
    FitOptions,
    FitResult,
    PlannedBatch,
    PlannedPart,
    SaveClock,
    Trainee,
    train,
)
from torch import Tensor

STEPS = 12
TARGET = torch.tensor([1.0, -2.0, 0.5])
OPTIONS = FitOptions(learning_rate=0.3, warmup_ratio=0.25, weight_decay=0.0, max_grad_norm=None)


class Point(Trainee):
    """A vector that is pulled to a target, and is best where its scores say so."""

    ranks = SINGLE_RANK

    def __init__(
        self, scores: Mapping[int, float] | None = None, bad_step: int | None = None, stops: int = 0
    ) -> None:
        self.point = torch.zeros(3, requires_grad=True)
        self.scores, self.bad_step, self.stops = scores or {}, bad_step, stops
        self.seen: list[Tensor] = []

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return {"point": self.point}

    @property
    def steps(self) -> int:
        return STEPS

    @property
    def tasks(self) -> Mapping[str, str]:
        return {"points": "pull"}

    def plan_batch(self, step: int) -> PlannedBatch:
        part = PlannedPart("points", np.array([step]), in_batch=False)
        return PlannedBatch(step, 0, 0, (part,))

    def backward(self, batch: PlannedBatch) -> PassResult:
        self.seen.append(self.point.detach().clone())
        for _ in range(self.stops if batch.step == 6 else 0):
            signal.raise_signal(signal.SIGINT)
        factor = float("nan") if batch.step == self.bad_step else 1.0 + batch.step
        loss = factor * (self.point - TARGET).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return PassResult(loss.detach(), tokens=1, padded_tokens=1)

    def score(self, step: int) -> float:
        return self.scores[step]


def trained(point: Point, work: Path, *, last: int = STEPS, **more: Any) -> FitResult:
    def progress(done: int, *_: object) -> None:
        if done > last:
            raise KeyboardInterrupt

    more = {"clock": SaveClock(seconds=0.0, pause=0.0), **more}
    return train(point, OPTIONS, folder=None, work=work, progress=progress, **more)


def test_a_killed_trainee_goes_on_from_its_state_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed, again = Point(), Point(), Point()
    expected = trained(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(killed, tmp_path / "killed", last=7)
    for path in tmp_path.glob("killed/states/*/manifest.json"):
        path.write_text(path.read_text().replace('"ranks": 1', '"ranks": 2'))
    said: list[str] = []
    monkeypatch.setattr(RankGroup, "sum_over_ranks", lambda _, value: value + 1000)
    found = trained(again, tmp_path / "killed", warn=said.append)
    assert len(again.seen) == STEPS - 7
    assert torch.equal(again.point, whole.point)
    assert found.step_losses == expected.step_losses
    assert said[0].startswith("the first 7 steps ran on 2 ranks and the rest on 1")
    assert found.cpu_seconds > 1000, "those of all ranks"


@pytest.mark.parametrize(("times", "saved"), [(1, ["step-7"]), (2, [])])
def test_ctrl_c_saves_a_state_after_its_step_and_a_second_one_stops_at_once(
    times: int, saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge.interpreter.REPEAT_SECONDS", 0.0)
    whole, again = Point(), Point()
    trained(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(Point(stops=times), tmp_path / "cut", clock=SaveClock())
    assert [path.name for path in tmp_path.glob("cut/states/*")] == saved
    trained(again, tmp_path / "cut")
    assert len(again.seen) == STEPS - 7 * len(saved)
    assert torch.equal(again.point, whole.point)


def test_a_trainee_that_scores_itself_ends_with_its_best_parameters(tmp_path: Path) -> None:
    scores = {2: 0.1, 4: 0.7, 6: float("nan"), 8: 0.7, 10: 0.9, 12: 0.9}
    rule = EarlyStopping(2, patience=2)
    point = Point(scores)
    result = trained(point, tmp_path / "whole", early_stopping=rule)
    # The score of step 8 is no better than that of step 4, and the one between them is no number.
    assert [step for step, _ in result.scores] == [2, 4, 6, 8]
    assert result.result_step == 4
    assert torch.equal(point.point, point.seen[4])
    with pytest.raises(KeyboardInterrupt):
        trained(Point(scores), tmp_path / "killed", last=5, early_stopping=rule)
    again = Point(scores)
    assert trained(again, tmp_path / "killed", early_stopping=rule).scores == result.scores
    assert torch.equal(again.point, point.point), "the best ones are part of the states"


def test_a_loss_that_is_no_number_ends_a_training_with_its_step(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="step 4") as told:
        trained(Point(bad_step=3), tmp_path)
    assert told.value.step == 4
