"""A training whose power is cut goes on from a state that is whole, and ends in the same bytes.

What a power cut may leave is described in `tests/support/power_cuts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Backbone, PerDataset
from emberge.files import clear_torn
from emberge.recipes import JsonLineFile
from emberge.training import EarlyStopping, FitOptions, latest_state, save_state
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, InfoNCE

from tests.support import tiny
from tests.support.disk_recorder import DiskRecorder, syncs_skipped
from tests.support.fitting import run_fit
from tests.support.power_cuts import Cut, DiskLog, contents
from tests.support.training_data import retrieval
from tests.support.word_vectors import WordVectors, word_vectors


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with syncs_skipped():
        yield


# ── states alone ────────────────────────────────────────────────────────────────────────────────


def save(disk: Path, step: int) -> None:
    tensors = {"w": torch.full((400,), float(step)), "m": torch.full((300,), step + 0.5)}
    save_state(disk / "work" / "states", step, tensors, {"losses": list(range(200 * step))})


def states_recorded(disk: Path) -> DiskLog:
    with DiskRecorder(disk) as recorder:
        for step in (1, 2, 3, 4):
            save(disk, step)
            recorder.announce(str(step))
    return recorder.log


def state_faults(cut: Cut, place: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """Go on from the newest state of a disk whose power was cut; yield what is wrong then."""
    cut.restore(place)
    states = place / "work" / "states"
    clear_torn(states)
    state = latest_state(states)
    announced = int(cut.announced[-1]) if cut.announced else 0
    reached = state.step if state is not None else 0
    if reached < announced:
        yield f"{cut}: step {announced} was saved, and the newest state is of {reached}"
    if state is not None and (
        not torch.equal(state.tensors["w"], torch.full((400,), float(state.step)))
        or state.facts["losses"] != list(range(200 * state.step))
    ):
        yield f"{cut}: the state of step {reached} is none that was saved"
    for step in range(reached + 1, 6):
        save(place, step)
    if contents(place) != expected:
        yield f"{cut}: other states in the end"


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"draws": 25, "everywhere": True, "most": 2000}, marks=pytest.mark.slow)],
)
def test_a_state_that_was_saved_is_there_after_a_power_cut(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Whole, or as the one before it; leftovers of older ones do not pile up."""
    for step in (1, 2, 3, 4, 5):
        save(tmp_path / "whole", step)
    (tmp_path / "disk").mkdir()
    log = states_recorded(tmp_path / "disk")
    expected = contents(tmp_path / "whole")
    judge = partial(state_faults, place=tmp_path / "place", expected=expected)
    faults = log.faults(judge, **more)
    assert not faults, faults


# ── whole trainings ─────────────────────────────────────────────────────────────────────────────

SCORES = {2: 1.0, 4: 2.0, 6: 0.0}  # by the steps at which states are saved


def train(
    backbone: Backbone, checkpoint: Path, disk: Path, recorder: DiskRecorder | None = None
) -> None:
    """Train six steps with three states, two kept models, and the best of three scored."""
    numbers: list[JsonLineFile] = []

    def metric(name: str, value: float, at: int) -> None:
        if not numbers:  # the work folder is made by the training
            numbers.append(JsonLineFile(disk / "work" / "numbers.jsonl"))
        numbers[0].append({"name": name, "at": at, "words": "so that lines cross sectors"})

    def progress(done: float, *_: object) -> None:
        if recorder is not None:
            recorder.announce(str(done))

    run_fit(
        backbone=backbone,
        checkpoint=checkpoint,
        datasets=[retrieval(12)],
        sampler=(BatchShuffle(batch_size=PerDataset(default=4)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.1),)),
        options=FitOptions(
            epochs=2,
            learning_rate=1e-3,
            token_budget=80,
            kept_tokens=80,
            save_steps=2,
            keep_last=2,
        ),
        folder=disk / "out",
        work=disk / "work",
        seed=0,
        device="cpu",
        store=disk / "store",
        progress=progress,
        metric=metric,
        early_stopping=EarlyStopping(2, lambda _, step: SCORES[step], "scores"),
    )
    for file in numbers:
        file.close()


class Training:
    """A training that nobody disturbs, by which others are judged."""

    def __init__(self, backbone: Backbone, checkpoint: Path, place: Path) -> None:
        self.backbone, self.checkpoint = backbone, checkpoint
        self.run(place)
        self.expected, self.logged = contents(place / "out"), logged(place)

    def run(self, disk: Path, recorder: DiskRecorder | None = None) -> None:
        train(self.backbone, self.checkpoint, disk, recorder)

    def log(self, disk: Path) -> DiskLog:
        disk.mkdir()
        with DiskRecorder(disk) as recorder:
            self.run(disk, recorder)
        return recorder.log

    def faults(self, cut: Cut, place: Path) -> Iterator[str]:
        """Train again on a disk whose power was cut; yield what is wrong then."""
        cut.restore(place)
        # A step is only announced when what was saved before it is safe.
        begun = int(cut.announced[-1]) if cut.announced and cut.announced[-1] in "123456" else 0
        due = max((step for step in SCORES if step < begun), default=0)
        state = latest_state(place / "work" / "states")
        if due > (state.step if state is not None else 0):
            yield f"{cut}: the state of step {due} is lost"
        try:
            self.run(place)
        except Exception as error:
            yield f"{cut}: {error!r}"
            return
        found = contents(place / "out")
        wrong = sorted(
            n for n in found.keys() | self.expected if found.get(n) != self.expected.get(n)
        )
        if wrong:
            yield f"{cut}: other bytes in {', '.join(wrong)}"
        if lost := self.logged - logged(place):
            yield f"{cut}: {len(lost)} numbers were logged before the state, and are lost"


def logged(disk: Path) -> set[tuple[str, int]]:
    lines = JsonLineFile(disk / "work" / "numbers.jsonl")
    lines.close()
    return {(row["name"], row["at"]) for row in JsonLineFile.read(lines.path)}


@pytest.mark.parametrize(
    "more",
    [
        {"draws": 2, "most": 80},
        pytest.param({"draws": 8, "everywhere": True, "most": 600}, marks=pytest.mark.slow),
    ],
)
def test_a_training_whose_power_is_cut_ends_in_the_same_bytes(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """States, kept and scored models, token ids and logged numbers are whole or made again."""
    training = Training(WordVectors(), word_vectors(tmp_path / "model"), tmp_path / "whole")
    log = training.log(tmp_path / "disk")
    assert contents(tmp_path / "disk" / "out") == training.expected
    faults = log.faults(partial(training.faults, place=tmp_path / "place"), **more)
    assert not faults, faults


@pytest.mark.slow
def test_a_training_of_a_transformer_whose_power_is_cut_ends_in_the_same_bytes(
    tmp_path: Path,
) -> None:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = tiny.checkpoint(tmp_path / "model", num_hidden_layers=1, **size)
    training = Training(TextEncoder(), model, tmp_path / "whole")
    log = training.log(tmp_path / "disk")
    judge = partial(training.faults, place=tmp_path / "place")
    faults = log.faults(judge, draws=1, most=120)
    assert not faults, faults
