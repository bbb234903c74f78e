"""A training tells the loss of each of its steps, and may keep no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge import PerDataset
from emberge.training import FitOptions, FitResult
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE

from tests.support.fitting import run_fit
from tests.support.training_data import retrieval, similarity


class StoppedError(Exception):
    """A training was stopped in its middle."""


def trained(model: Path, root: Path, *, stop: int | None = None, **given: Any) -> FitResult:
    def progress(done: float, total: float, unit: str = "", note: str = "") -> None:
        if unit == "steps" and done == stop:
            raise StoppedError

    arguments: dict[str, Any] = {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "losses": PerDataset(default=(InfoNCE(),), by_task={"sts": (CoSENT(),)}),
        "options": FitOptions(learning_rate=1e-3, save_steps=2, token_budget=512),
        "folder": root / "out",
        "work": root / "work",
        "seed": 0,
    }
    return run_fit(**{**arguments, "progress": progress, **given})


def test_every_step_is_told_with_its_dataset(bert: Path, tmp_path: Path) -> None:
    result = trained(bert, tmp_path)
    assert len(result.step_losses) == result.steps == 8
    names = [name for name, _ in result.step_losses]
    assert (names.count("find"), names.count("alike")) == (5, 3)
    curve = [loss for _, loss in result.curve]
    assert curve == [loss for _, loss in result.step_losses]


def test_losses_of_steps_before_an_interruption_are_told_too(bert: Path, tmp_path: Path) -> None:
    whole = trained(bert, tmp_path / "whole")
    with pytest.raises(StoppedError):
        trained(bert, tmp_path / "torn", stop=5)
    again = trained(bert, tmp_path / "torn")
    assert again.step_losses == whole.step_losses


def test_without_a_folder_nothing_is_kept_but_what_is_said(bert: Path, tmp_path: Path) -> None:
    kept = trained(bert, tmp_path / "kept")
    told = trained(bert, tmp_path / "told", folder=None)
    assert told.step_losses == kept.step_losses
    assert (tmp_path / "kept" / "out" / "model.safetensors").is_file()
    assert not (tmp_path / "told" / "out").exists()
    assert told.checkpoints == ()
