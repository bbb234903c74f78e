"""Scores that were computed before: under the model's content and what else they depend on."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from emberge import Model, TaskInfo, TaskScore, Units

__all__ = ["ScoreStore"]


class ScoreStore:
    """A folder of scores, `<model's fingerprint>/<task>-<task's fingerprint>.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, model: Model, task: TaskInfo) -> TaskScore | None:
        """What was kept of a model on a task; None when there is nothing, or nothing that can be read."""
        if not task.fingerprint:
            return None
        try:
            kept = json.loads(self._path(model, task).read_text(encoding="utf-8"))
            units = Units(**kept["units"]) if kept["units"] else None
            return TaskScore(task, float(kept["score"]), units, kept["result"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a damaged entry is computed again

    def write(self, model: Model, score: TaskScore) -> None:
        """Keep a score, so that a killed evaluation goes on behind it."""
        if not score.task.fingerprint:
            return
        path = self._path(model, score.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: dict[str, Any] = {
            "model": model.name,
            "task": dataclasses.asdict(score.task),
            "score": score.score,
            "units": dataclasses.asdict(score.units) if score.units else None,
            "result": score.result,
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(kept), encoding="utf-8")
        beside.replace(path)

    def _path(self, model: Model, task: TaskInfo) -> Path:
        name = f"{file_name(task.name)}-{task.fingerprint[:32]}.json"
        return self.folder / file_name(model.fingerprint) / name


def file_name(text: str) -> str:
    """A name that is safe in every file system."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip(".") or "_"
