"""From entries of a recipe to datasets: read, checked, indexed and ready for random access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.contracts.dataset import DatasetInfo, Example
from emberge.data.catalogue import load_catalogue
from emberge.data.eval_sets import load_eval_set

if TYPE_CHECKING:
    from emberge.contracts.dataset import Dataset, Reader
    from emberge.contracts.step import DataRef
    from emberge.data.entry import DataEntry
    from emberge.errors import Problem

__all__ = [
    "CheckedData",
    "Head",
    "check_entries",
    "first_examples",
    "load_catalogue",
    "load_datasets",
    "load_eval_set",
]


@dataclass(frozen=True)
class Head:
    """What the first rows of a dataset show: how it is understood, with its first example."""

    info: DatasetInfo
    example: Example
    prompt: str = ""
    symmetric: bool = False
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The dataset's name and task."""
        raise NotImplementedError

    @property
    def lines(self) -> tuple[str, ...]:
        """The first example as understood, a column a line."""
        raise NotImplementedError


@dataclass(frozen=True)
class CheckedData:
    """What a look at the heads of all entries found."""

    problems: tuple[Problem, ...] = ()
    heads: tuple[Head, ...] = field(default=())


def load_datasets(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
    limit: int | None = None,
    store: Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Dataset]:
    """The datasets that the entries name, in order."""
    raise NotImplementedError


def check_entries(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    limit_rows: int = 100,
    network: bool = False,
) -> CheckedData:
    """Look at the first rows of every entry."""
    raise NotImplementedError


def first_examples(datasets: Sequence[Dataset]) -> list[Head]:
    """The first example of each dataset as it was understood."""
    raise NotImplementedError
