from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import PerDataset
from emberge.encoding import PassResult
from emberge.ranks import RankGroup
from emberge.training import FitOptions
from emberge.training.batch_plan import PlannedBatch, PlannedPart
from emberge.training.loop.metrics import MetricLog
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE

from tests.support.fitting import run_fit
from tests.support.training_data import retrieval, similarity

Rows = list[tuple[str, float, int]]


def _record(rows: Rows, steps: int = 6, every: int = 2, **more: Any) -> MetricLog:
    tasks = {"find": "retrieval", "alike": "sts", "more": "retrieval"}
    return MetricLog(steps, lambda *row: rows.append(row), every, tasks, **more)


def _add(record: MetricLog, step: int, loss: float, *names: str, tokens: int = 30) -> None:
    parts = tuple(PlannedPart(name, range(step, step + 4), True) for name in names)
    batch = PlannedBatch(step, 0, 0, parts)
    passed = PassResult(torch.tensor(loss), tokens, 40, 20)
    record.add(batch, passed, torch.tensor(0.5), 1e-3)


def _at(rows: Rows, at: int) -> dict[str, float]:
    return {name: value for name, value, step in rows if step == at}


def test_points_are_means_since_the_one_before() -> None:
    ticks = itertools.count()
    rows: Rows = []
    record = _record(rows, steps=6, every=3, clock=lambda: float(next(ticks)))
    for step, (name, loss) in enumerate(
        [("find", 1.0), ("more", 3.0), ("alike", 8.0), ("find", 2.0), ("alike", 4.0)]
    ):
        _add(record, step, loss, name)
    record.finish()
    assert {at for _, _, at in rows} == {3, 5}
    first, last = _at(rows, 3), _at(rows, 5)
    assert first["loss"] == 4.0
    assert (first["loss/find"], first["loss/more"], first["loss/alike"]) == (1.0, 3.0, 8.0)
    assert (first["task_loss/retrieval"], first["task_loss/sts"]) == (2.0, 8.0)
    assert (last["loss"], last["task_loss/retrieval"], last["loss/alike"]) == (3.0, 2.0, 4.0)
    # A second a step.
    assert (first["tokens_per_second"], last["tokens_per_second"]) == (30.0, 30.0)
    assert (first["padding_share"], first["kept_share"]) == (0.25, 0.5)
    assert (first["examples"], last["examples"]) == (12.0, 20.0)


@pytest.mark.parametrize("up", [0.0, 1.0, 1000.0, 1e9], ids="up for {} s".format)
def test_counts_are_those_of_all_ranks(up: float) -> None:
    class Two(RankGroup):
        def sum_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
            return 2 * value

    clock = [up]
    rows: Rows = []
    alone: Rows = []
    for found, ranks in ((rows, Two(size=2)), (alone, RankGroup())):
        record = _record(found, steps=1, every=1, ranks=ranks, clock=lambda: clock[0])
        clock[0] += 1000
        _add(record, 0, 1.0, "find")
        record.finish()
    both = _at(rows, 1)["tokens_per_second"], _at(alone, 1)["tokens_per_second"]
    assert both == (0.06, 0.03)
    assert _at(rows, 1)["padding_share"] == _at(alone, 1)["padding_share"] == 0.25


def test_the_line_of_progress_says_loss_speed_padding_and_memory(
    bert: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    run_fit(
        backbone=TextEncoder(),
        checkpoint=bert,
        datasets=[retrieval(), similarity()],
        sampler=(BatchShuffle(batch_size=PerDataset(default=8)),),
        losses=PerDataset(default=(InfoNCE(),), by_task={"sts": (CoSENT(),)}),
        options=FitOptions(max_steps=9, token_budget=80, logging_steps=4),
        folder=tmp_path / "out",
        work=tmp_path / "work",
        seed=0,
        progress=lambda *said: notes.append(said[3]) if said[2] == "steps" else None,
    )
    assert notes[0] == ""
    assert re.fullmatch(r"loss [\d.]+", notes[1])
    assert re.fullmatch(r"loss [\d.]+, [\d,]+ tokens/s, \d+% padding, \d+\.\d GiB", notes[-1])
