"""Store of scores on disk, under the model's content and the task's fingerprint."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from emberge.contracts import Model, TaskInfo, TaskScore, Units
from emberge.files import write_text


class ScoreStore:
    """Folder of scores, `<model's fingerprint>/<task>-<task's fingerprint>.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, model: Model, task: TaskInfo) -> TaskScore | None:
        """Return the stored score of a model on a task; None when there is none that can be read."""
        return read_score(self._path(model, task), task) if task.fingerprint else None

    def write(self, model: Model, score: TaskScore) -> None:
        """Store a score, so that a killed evaluation does not compute it again."""
        if score.task.fingerprint:
            write_score(self._path(model, score.task), model, score)

    def _path(self, model: Model, task: TaskInfo) -> Path:
        name = f"{safe_file_name(task.name)}-{task.fingerprint[:32]}.json"
        return self.folder / safe_file_name(model.fingerprint) / name


def read_score(path: Path, task: TaskInfo) -> TaskScore | None:
    """Return the score on a task in a file; None when there is no file, or a damaged one."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        units = Units(**kept["units"]) if kept["units"] else None
        return TaskScore(task, float(kept["score"]), units, kept["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is computed again


def write_score(path: Path, model: Model, score: TaskScore) -> None:
    """Write a score into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {
        "model": model.name,
        "task": dataclasses.asdict(score.task),
        "score": score.score,
        "units": dataclasses.asdict(score.units) if score.units else None,
        "result": score.result,
    }
    write_text(path, json.dumps(kept), shared=True)


def safe_file_name(text: str) -> str:
    """Return a text as a file name that every file system accepts."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip(".") or "_"
