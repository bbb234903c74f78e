"""The save clock, and the negatives of a session's batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import Machine, PerDataset
from emberge.training import FitJob, SaveClock, open_session
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE, Matryoshka

from tests.support.training_data import retrieval, similarity


def test_a_state_is_due_later_where_saving_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = SaveClock(seconds=30, pause=20)
    now[0] = 29.0
    assert not clock.is_due()
    now[0] = 30.0
    assert clock.is_due()
    with clock.saving():
        now[0] = 33.0  # 3 seconds, so the pause is a minute
    for since, due in ((30.0, False), (59.0, False), (60.0, True)):
        now[0] = 33.0 + since
        assert clock.is_due() == due
    clock.start()
    now[0] += 30.0
    assert clock.is_due()


def test_other_rows_are_negatives_in_the_tasks_that_a_loss_names(
    bert: Path, tmp_path: Path
) -> None:
    outer = Matryoshka(loss=(InfoNCE(),), dims=(8,))
    job = FitJob(
        backbone=TextEncoder(),
        checkpoint=bert,
        datasets=[retrieval(), similarity()],
        sampler=(BatchShuffle(batch_size=PerDataset(default=8)),),
        losses=PerDataset(default=(CoSENT(unscored=True), outer), by_task={"sts": (CoSENT(),)}),
    )
    with open_session(
        job, work=tmp_path, store=None, machine=Machine(("cpu",)), progress=lambda *_: None
    ) as session:
        assert set(session.plan.list_groups()) == {("find", True), ("alike", False)}
