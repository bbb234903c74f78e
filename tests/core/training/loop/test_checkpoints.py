from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from emberge.files.atomic import clear_torn
from emberge.training.loop.checkpoints import latest_state, save_state


def _save(folder: Path, step: int) -> Path:
    return save_state(folder, step, {"w": torch.full((4,), float(step))}, {"seen": step * 2})


def test_the_newest_state_comes_back(tmp_path: Path) -> None:
    assert latest_state(tmp_path / "states") is None
    for step in (2, 10, 9):
        _save(tmp_path, step)
    state = latest_state(tmp_path)
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
    state = latest_state(tmp_path)
    assert state is not None
    assert state.step == 1


def test_what_a_kill_left_half_written_is_not_seen_and_removed(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    torn = tmp_path / ".step-2.part"
    torn.mkdir()
    (torn / "manifest.json").write_text(json.dumps({"step": 2, "files": {}, "facts": {}}))
    state = latest_state(tmp_path)
    assert state is not None
    assert state.step == 1
    clear_torn(tmp_path)
    assert not torn.exists()
