"""Training states on disk: whole or absent, and the newest that is sound is taken.

A state is a folder `step-N`, written under a side name, flushed file by file and then the folder, and
renamed. Its manifest lists the SHA-256 of every file, so that a state which a dying disk or a full one has
bent is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from emberge.durable import make_folder

__all__ = ["State", "clear_torn", "latest_state", "publish", "save_state"]

MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
KEPT = 2


@dataclass(frozen=True, eq=False)
class State:
    """A saved state: tensors by name and plain facts."""

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save_state(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Path:
    """Write `folder/step-N` and drop all but the newest two."""
    from safetensors.torch import save_file

    def fill(side: Path) -> None:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, side / TENSORS)
        content = {"step": step, "facts": dict(facts), "files": {TENSORS: _sha256(side / TENSORS)}}
        (side / MANIFEST).write_text(json.dumps(content), encoding="utf-8")

    path = publish(folder / f"step-{step}", fill)
    for old in _states(folder)[KEPT:]:
        shutil.rmtree(old)
    return path


def publish(path: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder under a side name, flush it to disk, and give it its name.

    A folder of that name is replaced.
    """
    # Else a power cut could take the folder of a step's model away and leave that of its state.
    make_folder(path.parent)
    side = path.with_name(f".{path.name}.part")
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir()
    fill(side)
    for file in sorted(side.rglob("*"), reverse=True):
        _flush(file)
    _flush(side)
    if path.exists():
        shutil.rmtree(path)
    os.rename(side, path)
    _flush(path.parent)
    return path


def latest_state(folder: Path) -> State | None:
    """The newest state whose files are as they were written; None without one."""
    for path in _states(folder):
        state = _read(path)
        if state is not None:
            return state
    return None


def clear_torn(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    if folder.is_dir():
        for path in folder.glob(".*.part"):
            shutil.rmtree(path, ignore_errors=True)


def _states(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def _read(path: Path) -> State | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if any(_sha256(path / name) != digest for name, digest in content["files"].items()):
            return None
        return State(content["step"], load_file(path / TENSORS), content["facts"])
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
