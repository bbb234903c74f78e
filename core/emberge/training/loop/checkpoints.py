"""Training states on disk: whole or absent, and the newest that is sound is taken.

A state is a folder `step-N`, written under a side name, flushed file by file and then the folder, and
renamed. Its manifest lists the SHA-256 of every file, so that a state which a dying disk or a full one has
bent is passed over for the one before.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from emberge.files.atomic import replace_folder
from emberge.files.hashes import sha256_of

__all__ = ["TrainingState", "latest_state", "save_state"]

MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
KEPT = 2


@dataclass(frozen=True, eq=False)
class TrainingState:
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
        content = {
            "step": step,
            "facts": dict(facts),
            "files": {TENSORS: sha256_of(side / TENSORS)},
        }
        (side / MANIFEST).write_text(json.dumps(content), encoding="utf-8")

    path = replace_folder(folder / f"step-{step}", fill)
    for old in _states(folder)[KEPT:]:
        shutil.rmtree(old)
    return path


def latest_state(folder: Path) -> TrainingState | None:
    """The newest state whose files are as they were written; None without one."""
    for path in _states(folder):
        state = _read(path)
        if state is not None:
            return state
    return None


def _states(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def _read(path: Path) -> TrainingState | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if any(sha256_of(path / name) != digest for name, digest in content["files"].items()):
            return None
        return TrainingState(content["step"], load_file(path / TENSORS), content["facts"])
    except (OSError, ValueError, KeyError, SafetensorError):
        return None
