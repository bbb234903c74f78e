"""What a step may ask while its recipe is checked, for tests that call a check without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emberge import DataRef, FileRef, ModelRef, Problem, Reader
from emberge.contracts import Expected, NoteLines, Reference
from emberge_data import JsonLines


class Glance:
    """What a step may ask while its recipe is checked: folders by their paths, no results of steps yet.

    It keeps the references of models that were asked for, and the notes.
    """

    deep = False
    readers: Sequence[Reader] = (JsonLines(),)
    plugins: Any = None

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.notes: dict[str, list[str]] = {}
        self.expectations: list[Expected] = []

    def where(self, option: str = "") -> str:
        return option

    def data(self, reference: DataRef | FileRef) -> Path | None:
        return None if reference.step else Path(reference.text)

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        self.looked.append(reference.text)
        return None if reference.step else Path(reference.text)

    def whole_model(self, reference: ModelRef) -> Path | None:
        return self.model(reference)

    def adapter(self, reference: ModelRef) -> Path | None:
        return None

    def name(self, reference: ModelRef) -> str:
        return reference.text

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option))

    def warning(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option), "warning")

    def note(self, title: str, lines: NoteLines) -> None:
        self.notes[title] = list(lines() if callable(lines) else lines)

    def keep_plan(self, plan: Any) -> None:
        pass

    def expect(self, expected: Expected) -> None:
        self.expectations.append(expected)

    def expected(self, reference: Reference) -> Expected | None:
        return None


def faults(component: Any) -> list[str]:
    """Return each problem that a component's check finds as its severity and its text."""
    return [f"{problem.severity}: {problem}" for problem in component.check(Glance())]
