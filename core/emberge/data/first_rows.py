"""The first rows of data: their problems, and how each dataset was understood."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from emberge.contracts import (
    DataRef,
    DatasetInfo,
    Example,
    Preflight,
    Reader,
    readable,
)
from emberge.data.data_sources import DataSource, expand, refuse_clashes
from emberge.data.entry import DataEntry
from emberge.data.file_summary import (
    FileSummary,
    decide_data,
    parse_rows,
)
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_parser import Row
from emberge.errors import DataError, EmbergeError, Problem
from emberge.media import MediaFolder
from emberge.wording import shorten

SHOWN_CHARACTERS = 100
HUB_SECONDS = 300
"""Seconds for which the first rows of a hub dataset are reused."""


@dataclass(frozen=True)
class FirstRows:
    """The facts and first example of a dataset. `info.size` is 0 if its rows were not counted."""

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
        """The first example, one line for each part; long texts are cut."""
        return tuple(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        example = self.example
        if self.columns:
            yield f"columns: {self.columns}"
        if self.prompt:
            side = "every text" if self.symmetric else "the anchor"
            yield f"prompt: {_cut_text(self.prompt)!r} before {side}"
        yield f"{'text' if self.info.task == 'text' else 'anchor'}: {_cut_text(example.anchor)}"
        yield from _count_texts("positive", example.positives, example.positive_scores)
        yield from _count_texts("negative", example.negatives, example.negative_scores)
        if example.label is not None:
            yield f"label: {_cut_text(example.label)}"
        if not example.positives and self.info.task != "text":
            yield "positive: drawn among the rows of the label"
        yield from (f"note: {note}" for note in self.notes)


def _count_texts(part: str, texts: Sequence[str], scores: Sequence[float] | None) -> Iterator[str]:
    for i, text in enumerate(texts[:2]):
        score = f" (score {scores[i]:.3g})" if scores is not None else ""
        more_text = f" (and {len(texts) - 2} more)" if i == 1 and len(texts) > 2 else ""
        yield f"{part}: {_cut_text(text)}{score}{more_text}"


def _cut_text(text: str) -> str:
    return shorten(readable(text), SHOWN_CHARACTERS)


@dataclass(frozen=True)
class CheckedData:
    """The result of checking all entries: problems, first rows of entries without problems, places."""

    problems: tuple[Problem, ...] = ()
    heads: tuple[FirstRows, ...] = ()
    places: tuple[str, ...] = ()
    """Files and hub datasets of all sets, also of those without first rows."""


def check_entries(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    limit_rows: int = 100,
    network: bool = False,
) -> CheckedData:
    """Check only the first `limit_rows` rows of every entry.

    An entry for which `resolve` returns None is skipped. Hub datasets are checked only with `network`;
    without it they are `unseen`. If a problem has a place in the data, `where` is its `file:line`; `where` is
    empty if only the line in the recipe can be named.
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
            message = f"dataset {source.place} was not looked at"
            problems.append(Problem(message, severity="unseen"))
            continue
        source_problems, head = _look_at_source(source, limit_rows)
        problems += source_problems
        heads += [head] if head is not None else []
    return CheckedData(tuple(problems), tuple(heads), tuple(source.place for source in sources))


def _look_at_source(source: DataSource, limit_rows: int) -> tuple[list[Problem], FirstRows | None]:
    """Return problems and facts of a source's first rows, cached while its file is unchanged."""
    if source.path is None:
        return _check_first_rows(source, limit_rows, (int(time.monotonic() // HUB_SECONDS),))
    status = source.path.stat()
    return _check_first_rows(source, limit_rows, (status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=256)
def _check_first_rows(
    source: DataSource,
    limit_rows: int,
    state: tuple[int, ...],  # noqa: ARG001 - it ages the memory
) -> tuple[list[Problem], FirstRows | None]:
    summary, rows = FileSummary(source.place), source.rows(head=True)
    media = MediaValues(MediaFolder(beside=source.path and source.path.parent), thorough=True)
    first: Row | None = None
    try:
        for _, row in parse_rows(islice(rows, limit_rows), source.entry, summary, media):
            first = first or row
        if summary.bad_rows.count:
            return summary.problems(), None
        decisions = decide_data(summary, source.entry)
    except ConnectionError as error:
        return [Problem(str(error), severity="unseen")], None
    except DataError as error:
        return [Problem(line) for line in str(error).splitlines()], None
    assert first is not None  # decide_data refuses a file without rows
    example = decisions.example(first)
    info = DatasetInfo(
        *(source.name, decisions.task, 0, source.entry.weight, decisions.negatives),
        media=summary.media_facts(),
    )
    shown = (decisions.prompt, decisions.symmetric, summary.columns, decisions.notes)
    return [], FirstRows(info, example, *shown)


def check_datasets(
    context: Preflight,
    entries: Sequence[DataEntry],
    option: str = "data",
    *,
    show: bool = True,
) -> CheckedData:
    """Return the first rows of a step's entries, and their problems.

    A problem without a `file:line` in the data has the line of `option`. With `show`, the first example of
    each dataset becomes a note. Without permission to use the network, hub datasets are `unseen`.
    """
    checked_data = check_entries(
        entries,
        readers=context.readers,
        resolve=context.data,
        network=context.deep,
    )
    for head in checked_data.heads if show else ():
        context.note(head.title, head.lines)
    problems = (
        dataclasses.replace(problem, where=problem.where or context.where(option))
        for problem in checked_data.problems
    )
    return dataclasses.replace(checked_data, problems=tuple(problems))
