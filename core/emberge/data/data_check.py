"""The check of data by its first rows: their problems, and how each dataset was understood."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from emberge.contracts import DataRef, DatasetInfo, Example, Preflight, Reader, show_media
from emberge.data.data_sources import DataSource, list_sources, refuse_clashes
from emberge.data.dataset_store import build_info
from emberge.data.entry import DataEntry
from emberge.data.file_summary import DataDecisions, FileSummary, decide_data, parse_rows
from emberge.data.media_values import MediaValues
from emberge.data.row_parser import Row
from emberge.errors import DataError, EmbergeError, Problem
from emberge.media import MediaFolder
from emberge.wording import shorten

SHOWN_CHARACTERS = 100
WHOLE_BYTES = 4 << 20
"""Size of the largest file whose rows are all checked, in a second at most."""
HUB_ROWS_REUSED_SECONDS = 300
"""Seconds for which the first rows of a hub dataset are reused."""


@dataclass(frozen=True)
class FirstRows:
    """The facts and first example of a dataset, whose rows were not counted: `info.size` is 0."""

    info: DatasetInfo
    example: Example
    decisions: DataDecisions
    columns: str

    @property
    def title(self) -> str:
        """The dataset's name and task."""
        return f"{self.info.name}: {self.info.task}"

    @property
    def lines(self) -> tuple[str, ...]:
        """The first example, one line for each part; long texts are cut."""
        return tuple(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        example, decisions = self.example, self.decisions
        yield f"columns: {self.columns}"
        if decisions.prompt:
            side = "every text" if decisions.symmetric else "the anchor"
            yield f"prompt: {_cut_text(decisions.prompt)!r} before {side}"
        yield f"{'text' if self.info.task == 'text' else 'anchor'}: {_cut_text(example.anchor)}"
        yield from _show_texts("positive", example.positives, example.positive_scores)
        yield from _show_texts("negative", example.negatives, example.negative_scores)
        if example.label is not None:
            yield f"label: {_cut_text(example.label)}"
        if not example.positives and self.info.task != "text":
            yield "positive: drawn among the rows of the label"
        yield from (f"note: {note}" for note in decisions.notes)


def _show_texts(part: str, texts: Sequence[str], scores: Sequence[float] | None) -> Iterator[str]:
    for i, text in enumerate(texts[:2]):
        score = f" (score {scores[i]:.3g})" if scores is not None else ""
        more_text = f" (and {len(texts) - 2} more)" if i == 1 and len(texts) > 2 else ""
        yield f"{part}: {_cut_text(text)}{score}{more_text}"


def _cut_text(text: str) -> str:
    return shorten(show_media(text), SHOWN_CHARACTERS)


@dataclass(frozen=True)
class CheckedData:
    """The result of checking all entries: problems, first rows of entries without problems, places."""

    problems: tuple[Problem, ...] = ()
    first_rows: tuple[FirstRows, ...] = ()
    places: tuple[str, ...] = ()
    """Files and hub datasets of all sets, also of those without first rows."""


def check_datasets(
    context: Preflight, entries: Sequence[DataEntry], option: str = "data", *, show: bool = True
) -> CheckedData:
    """Return the first rows of a step's entries, and their problems.

    A problem without a `file:line` in the data has the line of `option`. With `show`, the first example of
    each dataset becomes a note. Without permission to use the network, hub datasets are `unseen`.
    """
    checked_data = check_entries(
        entries, readers=context.readers, resolve=context.data, network=context.deep
    )
    for first_rows in checked_data.first_rows if show else ():
        context.note(first_rows.title, first_rows.lines)
    problems = (
        dataclasses.replace(problem, where=problem.where or context.where(option))
        for problem in checked_data.problems
    )
    return dataclasses.replace(checked_data, problems=tuple(problems))


def check_entries(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    limit_rows: int = 100,
    network: bool = False,
) -> CheckedData:
    """Check only the first `limit_rows` rows of every entry, and all rows of a small file without media.

    An entry for which `resolve` returns None is skipped. Hub datasets are checked only with `network`;
    without it they are `unseen`. If a problem has a place in the data, `where` is its `file:line`; `where` is
    empty if only the line in the recipe can be named.
    """
    problems: list[Problem] = []
    sources: list[DataSource] = []
    for entry in entries:
        try:
            sources += list_sources(entry, readers=readers, resolve=resolve)
        except EmbergeError as error:
            problems += [Problem(line) for line in str(error).splitlines()]
    try:
        refuse_clashes(sources)
    except DataError as error:
        problems.append(Problem(str(error)))
    readable: list[FirstRows] = []
    for source in sources:
        if source.path is not None:
            status = source.path.stat()
            state = (status.st_size, status.st_mtime_ns)
        elif network:
            state = (int(time.monotonic() // HUB_ROWS_REUSED_SECONDS), 0)
        else:
            message = f"dataset {source.place} was not looked at"
            problems.append(Problem(message, severity="unseen"))
            continue
        outcome = _read_first_rows(source, limit_rows, state)
        if isinstance(outcome, FirstRows):
            readable.append(outcome)
        else:
            problems += outcome
    return CheckedData(tuple(problems), tuple(readable), tuple(source.place for source in sources))


@functools.lru_cache(maxsize=256)
def _read_first_rows(
    source: DataSource,
    limit_rows: int,
    state: tuple[int, int],  # a changed file is read again
) -> FirstRows | list[Problem]:
    """Return the facts of a source's first rows, or their problems; cached while its file is unchanged."""
    is_small = source.path is not None and state[0] <= WHOLE_BYTES
    rows = islice(source.rows(head=True), None if is_small else limit_rows)
    summary, parsed_rows = FileSummary(source.place), list[Row]()
    media = MediaValues(MediaFolder(read_from=source.path and source.path.parent))
    try:
        for _, row in parse_rows(rows, source.entry, summary, media):
            parsed_rows.append(row)
            if media.hashes and len(parsed_rows) >= limit_rows:
                break
        if summary.bad_rows.count:
            return summary.bad_rows.list_problems(summary.place)
        decisions = decide_data(summary, source.entry)
    except ConnectionError as error:
        return [Problem(str(error), severity="unseen")]
    except DataError as error:
        return [Problem(line) for line in str(error).splitlines()]
    info = build_info(source.name, summary, decisions, source.entry.weight, 0)
    info = dataclasses.replace(info, scores=None)  # of the first rows, not of all
    return FirstRows(info, decisions.build_example(parsed_rows[0]), decisions, summary.columns)
