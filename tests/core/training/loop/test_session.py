"""The save clock, and a session's batches as a measurement goes through them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emberge import Machine, PerDataset
from emberge.training import FitJob, FitOptions, SaveClock, open_session
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, InfoNCE

from tests.support.training_data import retrieval


def test_a_state_is_due_later_where_saving_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = SaveClock(seconds=30, share=20)
    now[0] = 29.0
    assert not clock.is_due()
    now[0] = 30.0
    assert clock.is_due()
    with clock.saving():
        now[0] = 33.0  # 3 seconds, so one in 20 parts is a minute
    for since, due in ((30.0, False), (59.0, False), (60.0, True)):
        now[0] = 33.0 + since
        assert clock.is_due() == due
    clock.start()
    now[0] += 30.0
    assert clock.is_due()


@pytest.fixture
def job(bert: Path) -> FitJob:
    return FitJob(
        backbone=TextEncoder(),
        checkpoint=bert,
        datasets=[retrieval(24)],
        sampler=(BatchShuffle(batch_size=PerDataset(default=4)),),
        losses=PerDataset(default=(InfoNCE(),)),
        options=FitOptions(dropout=False, token_budget=80),
    )


def _counted(job: FitJob, work: Path, stop: int | None = None) -> tuple[list[int], float]:
    """Steps that were gone through, and the number of texts of all steps until now."""
    steps: list[int] = []
    sums = {"texts": torch.zeros(())}
    with open_session(
        job,
        work=work,
        store=None,
        machine=Machine(),
        progress=lambda *_: None,
        clock=SaveClock(seconds=0, share=0),
    ) as session:
        for batch in session.batches(sums, work / "states"):
            steps.append(batch.step)
            sums["texts"] += len(session.texts(batch))
            if batch.step == stop:
                break
    return steps, float(sums["texts"])


def test_sums_over_batches_go_on_from_the_newest_state(job: FitJob, tmp_path: Path) -> None:
    steps, whole = _counted(job, tmp_path / "whole")
    assert steps == [0, 1, 2, 3, 4, 5]
    cut, _ = _counted(job, tmp_path / "cut", stop=3)
    assert cut == [0, 1, 2, 3]
    left, again = _counted(job, tmp_path / "cut")
    assert left == [3, 4, 5]  # the step that was not finished is taken again
    assert again == whole
