from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import DatasetInfo, PerDataset
from emberge.training import FitOptions, TrainingState
from emberge.training.batch_plan import BatchPlan
from emberge.training.loop.checkpoints import KeptCheckpoints, list_steps_to_keep
from emberge_train import BatchShuffle

# Two epochs of five steps.
PLAN = BatchPlan(
    {DatasetInfo("find", "retrieval", 40): range(40)},
    [BatchShuffle(batch_size=PerDataset(default=8))],
    seed=1,
    epochs=2,
)


def _save(folder: Path, step: int) -> Path:
    tensors = {"w": torch.full((4,), float(step))}
    return TrainingState(step, tensors, {"seen": step * 2}).write(folder)


def test_the_newest_state_comes_back(tmp_path: Path) -> None:
    assert TrainingState.read_newest(tmp_path / "states") is None
    for step in (2, 10, 9):
        _save(tmp_path, step)
    state = TrainingState.read_newest(tmp_path)
    assert state is not None
    assert state.step == 10
    assert state.facts == {"seen": 20}
    assert torch.equal(state.tensors["w"], torch.full((4,), 10.0))


def test_two_states_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        _save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-3", "step-4"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_bent_state_is_passed_over(tmp_path: Path, name: str, harm: str) -> None:
    _save(tmp_path, 1)
    path = _save(tmp_path, 2) / name
    content = bytearray(path.read_bytes())
    if harm == "remove":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[-1] ^= 0xFF
        path.write_bytes(content)
    state = TrainingState.read_newest(tmp_path)
    assert state is not None
    assert state.step == 1


def test_a_state_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files and its folder are synced before the rename, and the list that has its name after it."""
    done: list[tuple[str, str]] = []

    def noting(call: str, real: Callable[..., None]) -> Callable[..., None]:
        def noted(what: Any, *more: Any, **how: Any) -> None:
            real(what, *more, **how)
            path = (
                os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
            )
            done.append((call, Path(path).name))

        return noted

    for call in ("fsync", "rename", "replace"):
        monkeypatch.setattr(os, call, noting(call, getattr(os, call)))
    state = _save(tmp_path / "states", 3)
    (moved,) = [i for i, (call, _) in enumerate(done) if call != "fsync"]
    before, after = ({name for _, name in part} for part in (done[:moved], done[moved + 1 :]))
    assert before - {tmp_path.name} == {done[moved][1], *(path.name for path in state.iterdir())}
    assert after == {"states"}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"keep_last": 0}, set()),
        ({"keep_last": 0, "save_steps": 3}, set()),
        ({"keep_last": 4}, {5, 10}),
        ({"keep_last": 4, "save_steps": 3}, {3, 6, 9}),
        ({"keep_last": 1, "save_steps": 10}, {10}),
    ],
)
def test_models_are_kept_at_the_ends_of_epochs_or_every_so_many_steps(
    options: dict[str, int], steps: set[int]
) -> None:
    assert set(list_steps_to_keep(PLAN.starts, FitOptions(**options))) == steps  # type: ignore[arg-type]


def test_the_newest_few_models_are_kept_and_put_into_the_result(tmp_path: Path) -> None:
    kept = KeptCheckpoints(tmp_path / "checkpoints", frozenset(range(1, 12)), 2)
    assert kept.copy_into(tmp_path / "none") == ()
    for step in (9, 10, 8, 11):  # a later name may sort before an earlier one
        kept.keep(step, lambda side, step=step: (side / "model").write_text(str(step)))
    newest = {"step-10": "10", "step-11": "11"}
    assert {p.parent.name: p.read_text() for p in tmp_path.rglob("model")} == newest
    result = tmp_path / "result"
    (result / "checkpoints" / "step-10").mkdir(parents=True)
    (result / "checkpoints" / "step-10" / "model").write_text("of a run that was killed")
    assert [str(p) for p in kept.copy_into(result)] == [
        "checkpoints/step-10",
        "checkpoints/step-11",
    ]
    for name, text in newest.items():
        there = result / "checkpoints" / name / "model"
        assert there.read_text() == text
        assert there.samefile(tmp_path / "checkpoints" / name / "model"), "no second copy"
