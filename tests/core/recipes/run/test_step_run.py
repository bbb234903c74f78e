"""Progress within parts says which part of how many runs, and never decreases."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from emberge import EmbergeError
from emberge.recipes.run.step_run import StepProgress, explain_disk_full
from emberge.results import OutFolder
from safetensors import SafetensorError


@pytest.fixture
def told() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def progress(told: list[tuple[Any, ...]]) -> StepProgress:
    return StepProgress(lambda *report: told.append(report))


def test_progress_within_parts_is_a_share_of_the_outermost_part(
    progress: StepProgress, told: Any
) -> None:
    progress.report(3, 4, "bytes", "a tensor")
    progress.report(1, 4, "bytes")
    progress.report(0, 0, note="loading rows")
    assert told == [(3, 4, "bytes", "a tensor"), (1, 4, "bytes", ""), (0, 0, "", "loading rows")]
    with progress.part("model", 2, 4, "base"), progress.part("set", 3, 4, "nq"):
        progress.report(1, 2, "texts")
        assert told[-1] == (1 + 2.5 / 4, 4, "models", "model 2 of 4: base · set 3 of 4: nq")
    assert told[-1] == (2, 4, "models", "model 2 of 4: base")


def test_a_part_is_named_and_counted_if_there_are_others(progress: StepProgress, told: Any) -> None:
    with progress.part("model", 1, 1, "base"), progress.part("set", 1, 1):
        progress.report(3, 4, "texts", "queries")
    assert (3, 4, "texts", "base · queries") in told
    with progress.part("model", 1, 1, "base"), progress.part("set", 2, 2, "nq"):
        assert told[-1] == (1, 2, "sets", "base · set 2 of 2: nq")


def test_progress_never_decreases_within_parts(progress: StepProgress, told: Any) -> None:
    for number, name in enumerate("ab", 1):
        with progress.part("model", number, 2, name), progress.part("set", 1, 1):
            for share in (0.2, 0.9, 0.1, 1.5, -1):  # as when several things are counted
                progress.report(share, 1)
            progress.report(0, 0, note="loading rows")
    done = [report[0] for report in told]
    assert done == sorted(done)
    assert done[-1] == 2
    assert max(report[0] for report in told if "model 1" in report[3]) == 1


def test_progress_starts_again_at_a_first_part(progress: StepProgress, told: Any) -> None:
    """As when a step embeds with several models, and then merges several."""
    for _ in range(2):
        for number in (1, 2):
            with progress.part("model", number, 2):
                pass
    assert [report[0] for report in told] == [0, 1, 1, 2] * 2


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), SafetensorError("I/O error: No space left on device")]
)
def test_a_full_disk_is_failed_work_with_its_remedy(error: Exception, tmp_path: Path) -> None:
    full = pytest.raises(EmbergeError, match="is full; make room")
    with full as told, explain_disk_full(OutFolder(tmp_path)):
        raise error
    assert told.value.exit_code == 1
    (tmp_path / "work" / "states" / "step-7").mkdir(parents=True)
    goes_on = pytest.raises(EmbergeError, match="and this one goes on after optimizer step 7")
    with goes_on, explain_disk_full(OutFolder(tmp_path), tmp_path / "work"):
        raise error
    with pytest.raises(ValueError, match="another"), explain_disk_full(OutFolder(tmp_path)):
        raise ValueError("another")
