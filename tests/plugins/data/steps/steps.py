"""Files of rows, and the context in which a step over data is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import DataRef, FileRef, ModelRef, Problem, Reader
from emberge_data.json_lines import JsonLines


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


class Glance:
    """What a step may ask while its recipe is checked; local files only."""

    deep = False
    readers: Sequence[Reader] = (JsonLines(),)

    def where(self, option: str = "") -> str:
        return f"recipe.yaml:{option}"

    def data(self, reference: DataRef | FileRef) -> Path | None:
        return None if reference.step else Path(reference.text)

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        return None if reference.step else Path(reference.text)

    def whole_model(self, reference: ModelRef) -> Path | None:
        return self.model(reference)

    def adapter(self, reference: ModelRef) -> Path | None:
        return None

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option))

    def warning(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option), "warning")

    def note(self, title: str, lines: Sequence[str]) -> None:
        pass
