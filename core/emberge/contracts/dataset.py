"""Data: examples, kinds of task, datasets and readers of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, get_args

from emberge.contracts.medium import DatasetMediaFacts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TaskKind = Literal[
    "retrieval", "reranking", "classification", "clustering", "sts", "pair_classification", "text"
]
TASK_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
# Negatives of a row: as its dataset says, other rows' texts too, or the row's own texts alone.
Negatives = Literal["auto", "in_batch", "hard_only"]
# Domain of a task relative to the training data: inside, outside, or "elsewhere", which is unlike
# all training data, so that scores there only show what a model forgot.
Domain = Literal["in", "out", "elsewhere"]
# Part of an evaluation set, or of the data that a step `split` made.
Split = Literal["test", "dev"]
# A lazy sequence of row numbers: a range, an array, or a list.
Rows: TypeAlias = "Sequence[int] | NDArray[np.int64]"


def take_rows(rows: Rows, positions: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the row numbers at these positions of `rows`, by default all of them, as an array [n]."""
    import numpy as np

    if isinstance(rows, range):
        positions = np.arange(len(rows), dtype=np.int64) if positions is None else positions
        return np.asarray(rows.start + rows.step * positions, dtype=np.int64)
    numbers = np.asarray(rows, dtype=np.int64)
    return numbers if positions is None else numbers[positions]


@dataclass(frozen=True, slots=True)
class Example:
    """One row: an anchor, positives, negatives, and gold or teacher scores from 0 to 1.

    A row of the task `text` has only an anchor. Images and clips are references within the texts, as
    `join_parts` writes them.
    """

    anchor: str
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    positive_scores: tuple[float, ...] | None = None
    negative_scores: tuple[float, ...] | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Facts of a dataset that a sampler may use: no text, only names, kinds and the number of rows.

    `negatives` is the catalogue's rule about using other rows' texts as negatives. `scores` are the lowest
    and the highest score of all texts, scaled to 0 to 1; None without scores, or if they are unknown.
    `tokens` are the token counts of the rows of a dataset of the task `text`, once they are known; the rows
    are then windows of texts. `media` are the facts of images and clips; None for a dataset of texts alone.
    """

    name: str
    task: TaskKind
    size: int
    weight: float = 1.0
    negatives: Negatives = "auto"
    scores: tuple[float, float] | None = None
    tokens: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    media: DatasetMediaFacts | None = field(default=None, compare=False, repr=False)

    @property
    def pair(self) -> str:
        """Kinds of the two sides of its pairs: `text-text`, `image-text`, `audio-text`, …."""
        return "text-text" if self.media is None else self.media.pair


class Dataset(Protocol):
    """A named, indexable set of examples of one task kind."""

    @property
    def info(self) -> DatasetInfo:
        """Name, task kind and size."""

    @property
    def prompt(self) -> str:
        """Text put before the anchor, and before positives and negatives too if `symmetric`."""

    @property
    def symmetric(self) -> bool:
        """True if both sides are the same kind of text, such as two sentences."""

    @property
    def fingerprint(self) -> str:
        """A hash of content and reading options, which a resumed training compares."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Example: ...


@dataclass(frozen=True, kw_only=True)
class DataOrigin:
    """Origin of a set, which cards of trained models name; an option left out is not stated."""

    licence: str | None = None
    """Licence, by the identifier that hubs use (`cc-by-4.0`), or by its name."""
    url: str | None = None
    """Address of a page about the data; for a hub dataset by default its page."""
    written_by: tuple[str, ...] = ()
    """Models that wrote texts of the set."""
    scored_by: tuple[str, ...] = ()
    """Models that gave the scores of the set."""

    def updated(self, other: DataOrigin) -> DataOrigin:
        """Return the origin with the facts that `other` states in place of its own."""
        return replace(self, **{n: v for n, v in vars(other).items() if v not in (None, ())})


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read: the message names the problem and the remedy."""

    message: str


class Reader:
    """A reader of one kind of file, row by row.

    `suffixes` are the endings of the names of its files; if several readers fit a file, the longest ending
    decides. If `revision` is raised, files that were read by an older revision are read again.
    """

    suffixes: tuple[str, ...] = ()
    revision: ClassVar[int] = 1

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        """Yield (line or row number from 1, row as a mapping of columns), never loading the whole file.

        A row that cannot be read is yielded as a `BadRow`, so that the rows after it are checked too and all
        problems are reported at once.

        Raises:
            DataError: if the file cannot be read at all; the message names it.
        """
        raise NotImplementedError
