"""What a step may ask while its recipe is checked, for tests that call a check without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emberge import DataRef, FileRef, ModelRef, Problem, Reader
from emberge_data.json_lines import JsonLines


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
