"""What a step may ask and say while a recipe is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from emberge.contracts.dataset import Reader
    from emberge.contracts.sampler import Rows
    from emberge.contracts.step import Artifact, DataRef, FileRef, ModelRef, Reference
    from emberge.errors import Problem

__all__ = ["Expected", "Preflight"]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a step will leave, as far as it is known before it runs.

    `artifact` holds what is known of the artifact to come; `rows` the row numbers of every dataset that a
    training will see.
    """

    artifact: Artifact
    rows: Mapping[str, Rows] = field(default_factory=dict)


class Preflight(Protocol):
    """What a step may ask while a recipe is checked: headers and configs, never weights."""

    @property
    def deep(self) -> bool:
        """False when no network may be used."""
        ...

    @property
    def readers(self) -> Sequence[Reader]:
        """All installed readers of data files."""
        ...

    def where(self, option: str = "") -> str:
        """`file:line` of one of the step's options."""
        ...

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        """A folder with at least configs and tokenizer files; with `weights`, one of this machine has some.

        None for a model that is yet to be made, or that cannot be seen; the context notes that itself, and
        shows no note of a step that names a model which is not there.
        """
        ...

    def adapter(self, reference: ModelRef) -> Path | None:
        """The folder of the adapter in `model+adapter`; None without one, or when it cannot be seen."""
        ...

    def data(self, reference: DataRef | FileRef) -> Path | None:
        """The file or folder; None when a step is yet to make it."""
        ...

    def problem(self, message: str, option: str = "") -> Problem:
        """An error at an option of this step."""
        ...

    def warning(self, message: str, option: str = "") -> Problem:
        """A warning at an option of this step."""
        ...

    def note(self, title: str, lines: Sequence[str]) -> None:
        """Something that `check` shows beside the problems: a plan, a first example."""
        ...

    def made(self, reference: Reference) -> Path | None:
        """What an earlier run left of a step, maybe under other options; None without one to look at."""
        ...

    def expect(self, expected: Expected) -> None:
        """Say what this step will leave, for the steps after it to ask about."""
        ...

    def expected(self, reference: Reference) -> Expected | None:
        """What an earlier step said that it will leave; None for one that could not say."""
        ...
