"""Training states and kept models on disk: complete or absent; the newest undamaged state is used.

A state is a folder `step-N`, written under a temporary name, synced to disk and renamed. Its manifest has the
SHA-256 of every file, by which a damaged state is noticed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from emberge.errors import EmbergeError
from emberge.files import clear_torn, link_or_copy, replace_folder
from emberge.hashes import hash_sha256
from emberge.training.fit_options import FitOptions

MANIFEST_FILE = "manifest.json"
TENSORS_FILE = "tensors.safetensors"
KEPT_STATES = 2
SECONDS_BETWEEN_SAVES = 30.0
# Seconds without saving by the clock, for each second that the last saving took.
PAUSE_PER_SAVING_SECOND = 20


@dataclass(frozen=True, eq=False)
class TrainingState:
    """State of a training after `step` steps: tensors by name, and plain facts."""

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def write(self, folder: Path) -> Path:
        """Write `folder/step-N`, remove all but the newest two states, and return the new state's path."""
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().contiguous() for name, tensor in self.tensors.items()}

        def fill(side: Path) -> None:
            save_file(tensors, side / TENSORS_FILE)
            content = {
                "step": self.step,
                "facts": dict(self.facts),
                "files": {TENSORS_FILE: hash_sha256(side / TENSORS_FILE)},
            }
            (side / MANIFEST_FILE).write_text(json.dumps(content), encoding="utf-8")

        path = replace_folder(folder / f"step-{self.step}", fill)
        for old in _list_states(folder)[KEPT_STATES:]:
            shutil.rmtree(old)
        return path

    @classmethod
    def read_newest(cls, folder: Path) -> TrainingState | None:
        """Return the newest state whose files are undamaged; None if there is none."""
        states = map(_read_state, _list_states(folder))
        return next((state for state in states if state is not None), None)


@dataclass(frozen=True)
class KeptCheckpoints:
    """Models of some steps in `folder`; only the newest `keep_last` are kept."""

    folder: Path
    steps: frozenset[int]
    keep_last: int

    def clear_torn(self) -> None:
        """Remove folders that a killed process left incomplete."""
        clear_torn(self.folder)

    def keep(self, step: int, save: Callable[[Path], None]) -> None:
        """Write the model of a step, and remove all but the newest `keep_last` models."""
        replace_folder(self.folder / f"step-{step}", save)
        for old in self._list_checkpoints()[: -self.keep_last]:
            shutil.rmtree(old)

    def copy_into(self, folder: Path) -> tuple[Path, ...]:
        """Put the kept models into a result and return their paths in it; the originals remain."""
        # A power cut may have partly restored models that were removed before.
        newest = self._list_checkpoints()[-self.keep_last :] if self.keep_last else []
        for path in newest:
            target = folder / "checkpoints" / path.name
            shutil.copytree(path, target, copy_function=link_or_copy, dirs_exist_ok=True)
        return tuple(Path("checkpoints") / path.name for path in newest)

    def _list_checkpoints(self) -> list[Path]:
        folders = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted(folders, key=lambda p: int(p.name.removeprefix("step-")))


def list_steps_to_keep(starts: Sequence[int], options: FitOptions) -> tuple[int, ...]:
    """Return the steps whose models are kept: every `save_steps` steps, or epochs; () for none.

    `starts` are the first steps of the epochs, and the end. A training shorter than `save_steps` keeps the
    model of its last step. Only the newest `keep_last` models are kept.
    """
    if not options.keep_last:
        return ()
    every, end = options.save_steps, starts[-1]
    steps = starts[1:] if every is None else range(every, end + 1, every)
    return tuple(steps) or (end,)


def _list_states(folder: Path) -> list[Path]:
    states = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] if folder.is_dir() else []
    return sorted(states, key=lambda p: int(p.name[5:]), reverse=True)


def _read_state(path: Path) -> TrainingState | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        if content["files"] != {TENSORS_FILE: hash_sha256(path / TENSORS_FILE)}:
            return None
        return TrainingState(content["step"], load_file(path / TENSORS_FILE), content["facts"])
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


class SaveClock:
    """Clock of saving: a state is due after `seconds` and after `pause` times the time of the last saving."""

    def __init__(
        self, seconds: float = SECONDS_BETWEEN_SAVES, pause: float = PAUSE_PER_SAVING_SECOND
    ) -> None:
        self._seconds, self._pause = seconds, pause
        self.start()

    def start(self) -> None:
        """Start counting from now, as if a state had been saved at no cost."""
        self._saved, self._cost = time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Return whether the next state is due."""
        elapsed = time.monotonic() - self._saved
        return elapsed >= max(self._seconds, self._pause * self._cost)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure the time of the block, which saves a state; the next state is due relative to its end."""
        began = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._cost = self._saved - began


def refuse_other_training(state: TrainingState, identity: Mapping[str, Any], states: Path) -> None:
    """Refuse to continue the state of another training, with the reason."""
    saved = state.facts["identity"]
    descriptions = {
        "checkpoint": "the weights it starts from",
        "data": "the data",
        "options": "the options",
        "code": "the options of components",
        "plan": "the batches (sampler, seed or number of rows)",
    }
    for fact in dict.fromkeys((*descriptions, *saved, *identity)):
        old, new = saved.get(fact), identity.get(fact)
        if old == new:
            continue
        description = descriptions.get(fact, fact)
        if fact in ("data", "options", "code"):
            old, new = old or {}, new or {}
            names = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
            description += f" ({', '.join(names)})"
        raise EmbergeError(
            f"{states}: a training was begun here and {description} have changed since; "
            "delete the folder to start over, or undo the change to continue"
        )
