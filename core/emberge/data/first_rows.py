"""What the first rows of data show: faults, and how each dataset is understood."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from emberge.contracts.dataset import Dataset, DatasetInfo, Example, Reader
from emberge.contracts.reference import DataRef
from emberge.data.data_sources import DataSource, expand, refuse_clashes
from emberge.data.entry import DataEntry
from emberge.data.file_summary import FileSummary, decide_data, understood
from emberge.data.hub_datasets import recently
from emberge.data.row_parser import Row
from emberge.errors import DataError, EmbergeError, Problem

__all__ = ["CheckedData", "FirstRows", "check_entries", "first_examples"]

SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class FirstRows:
    """How a dataset is understood, with its first example. `info.size` is 0 where rows were not counted."""

    info: DatasetInfo
    example: Example
    prompt: str = ""
    symmetric: bool = False
    columns: str = ""
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The dataset's name, task and size."""
        size = f", {self.info.size:,} rows" if self.info.size else ""
        return f"{self.info.name}: {self.info.task}{size}"

    @property
    def lines(self) -> tuple[str, ...]:
        """The first example as understood, a part a line, long texts cut."""
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        example = self.example
        if self.columns:
            yield f"columns: {self.columns}"
        if self.prompt:
            side = "every text" if self.symmetric else "the anchor"
            yield f"prompt: {_cut(self.prompt)!r} before {side}"
        yield f"anchor: {_cut(example.anchor)}"
        yield from _texts("positive", example.positives, example.positive_scores)
        yield from _texts("negative", example.negatives, example.negative_scores)
        if example.label is not None:
            yield f"label: {example.label}"
        if not example.positives:
            yield "positive: drawn among the rows of the label"
        yield from (f"note: {note}" for note in self.notes)


def _texts(part: str, texts: Sequence[str], scores: Sequence[float] | None) -> Iterator[str]:
    for i, text in enumerate(texts[:2]):
        score = f" (score {scores[i]:.3g})" if scores is not None else ""
        more = f" (and {len(texts) - 2} more)" if i == 1 and len(texts) > 2 else ""
        yield f"{part}: {_cut(text)}{score}{more}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class CheckedData:
    """What a look at the heads of all entries found: every fault, and how the sound ones are understood."""

    problems: tuple[Problem, ...] = ()
    heads: tuple[FirstRows, ...] = ()


def check_entries(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    limit_rows: int = 100,
    network: bool = False,
) -> CheckedData:
    """Look at the first `limit_rows` rows of every entry, without reading on.

    An entry that `resolve` gives None for is passed over. Hub datasets are looked at with `network`, and
    are `unseen` without. A problem stands at `file:line` where it has such a place; `where` is empty where
    only the recipe's own line can be named.
    """
    problems: list[Problem] = []
    sources: list[DataSource] = []
    for entry in entries:
        try:
            sources += expand(entry, readers=readers, resolve=resolve)
        except EmbergeError as error:
            problems += [Problem(line) for line in str(error).splitlines()]
    try:
        refuse_clashes(sources)
    except DataError as error:
        problems.append(Problem(str(error)))
    heads: list[FirstRows] = []
    for source in sources:
        if source.path is None and not network:
            problems.append(Problem(f"dataset {source.place} was not looked at", severity="unseen"))
            continue
        found, head = _look(source, limit_rows)
        problems += found
        heads += [head] if head is not None else []
    return CheckedData(tuple(problems), tuple(heads))


def _look(source: DataSource, limit_rows: int) -> tuple[list[Problem], FirstRows | None]:
    """What the first rows show; steps that share a dataset of the hub ask for it once."""
    return (
        _seen(source, limit_rows, recently()) if source.path is None else _found(source, limit_rows)
    )


@functools.lru_cache(maxsize=256)
def _seen(
    source: DataSource,
    limit_rows: int,
    when: int,  # noqa: ARG001 - it ages the memory
) -> tuple[list[Problem], FirstRows | None]:
    return _found(source, limit_rows)


def _found(source: DataSource, limit_rows: int) -> tuple[list[Problem], FirstRows | None]:
    tally, rows = FileSummary(source.place), source.rows(head=True)
    first: Row | None = None
    try:
        for row in understood(islice(rows, limit_rows), source.entry, tally):
            first = first or row
        if tally.fault_count:
            return tally.problems(), None
        settled = decide_data(tally, source.entry)
    except ConnectionError as error:
        return [Problem(str(error), severity="unseen")], None
    except DataError as error:
        return [Problem(line) for line in str(error).splitlines()], None
    assert first is not None  # settle refuses a file without rows
    example = settled.example(first)
    info = DatasetInfo(source.name, settled.task, 0, source.entry.weight, settled.negatives)
    notes = settled.notes
    return [], FirstRows(info, example, settled.prompt, settled.symmetric, tally.columns, notes)


def first_examples(datasets: Sequence[Dataset]) -> list[FirstRows]:
    """The first example of each dataset as it was understood, for a person to look at."""
    return [
        FirstRows(
            dataset.info,
            dataset[0],
            dataset.prompt,
            dataset.symmetric,
            getattr(dataset, "columns", ""),
            getattr(dataset, "notes", ()),
        )
        for dataset in datasets
    ]
