"""The summary of a file's rows: bad rows, scores and labels, and the task and scale derived from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from emberge.contracts import (
    MEDIA_KINDS,
    BadRow,
    DatasetMediaFacts,
    Example,
    Negatives,
    TaskKind,
    find_pair_kind,
    list_media_kinds,
)
from emberge.data.columns import LayoutError
from emberge.data.entry import DataEntry
from emberge.data.media_values import MediaValues
from emberge.data.row_parser import Row, RowError, RowParser
from emberge.errors import DataError, Problem

_SHOWN_PROBLEMS = 20
_SHOWN_ROWS = 5


class RowProblems:
    """Problems of rows that cannot be used: the first twenty messages, and the first rows of each."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[str, list[int]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, number: int, message: str) -> None:
        """Add the problem of a row, 0 for the whole file."""
        self.count += 1
        if message in self._rows or len(self._rows) < _SHOWN_PROBLEMS:
            self._counts[message] += 1
            self._rows.setdefault(message, [])
            if len(self._rows[message]) < _SHOWN_ROWS:
                self._rows[message].append(number)

    def list_problems(self, place: str) -> list[Problem]:
        """Return a problem for each message, at its first row, and one with the number of further rows."""
        problems = [
            Problem(
                f"{message}{self._list_rows(message)}", f"{place}:{rows[0]}" if rows[0] else place
            )
            for message, rows in self._rows.items()
        ]
        if omitted := self.count - self._counts.total():
            problems.append(Problem(f"{omitted} more rows cannot be used", place))
        return problems

    def _list_rows(self, message: str) -> str:
        count, rows = self._counts[message], self._rows[message]
        more = ", …" if count > len(rows) else ""
        return f" ({count:,} rows: {', '.join(map(str, rows))}{more})" if count > 1 else ""


@dataclass
class FileSummary:
    """Counts over the rows of one file, and the number of the first line of each kind of row.

    `rows_by_label` counts the rows of each label if a file `draws_positives` among rows of one label.
    `first_lines` are by kinds such as "with scores", and `line_by_pair_kind` are first lines by kinds such as
    "image-text". `stored_hash` is that of the rows and of the paths of their media.
    """

    place: str
    rows: int = 0
    rows_with_negatives: int = 0
    scored_rows: int = 0
    rows_with_label: int = 0
    rows_by_label: dict[str, int] = field(default_factory=dict)
    draws_positives: bool = False
    is_single: bool = False
    lowest: float = 0.0
    highest: float = 0.0
    zero_or_one: bool = True
    first_lines: dict[str, int] = field(default_factory=dict)
    columns: str = ""
    digest: str = ""
    line_by_pair_kind: dict[str, int] = field(default_factory=dict)
    line_by_media_kind: dict[str, int] = field(default_factory=dict)
    stored_hash: str = ""
    bad_rows: RowProblems = field(default_factory=RowProblems, compare=False)

    def add(self, line: int, row: Row) -> None:
        """Count a row that can be used."""
        self.rows += 1
        self.rows_with_negatives += bool(row.negatives)
        self.rows_with_label += row.label is not None
        if self.draws_positives and row.label is not None:
            self.rows_by_label[row.label] = self.rows_by_label.get(row.label, 0) + 1
        self.first_lines.setdefault(
            "with a label" if row.label is not None else "without a label", line
        )
        scores = row.scores
        self.first_lines.setdefault("with scores" if scores else "without scores", line)
        if scores:
            known = (self.lowest, self.highest) if self.scored_rows else ()
            self.lowest, self.highest = min((*known, *scores)), max((*known, *scores))
            self.scored_rows += 1
            self.zero_or_one &= all(score in (0, 1) for score in scores)

    def add_media(self, line: int, row: Row) -> None:
        """Record the kinds of a row's pair and of its media."""
        other_texts = (*row.positives, *row.negatives)
        self.line_by_pair_kind.setdefault(find_pair_kind(row.anchor, other_texts), line)
        for kind in list_media_kinds((row.anchor, *other_texts)):
            self.line_by_media_kind.setdefault(kind, line)

    def build_media_facts(self) -> DatasetMediaFacts | None:
        """Return the facts of the file's media for checks; None for a file of texts."""
        if not self.line_by_media_kind:
            return None
        return DatasetMediaFacts(
            pair=next(iter(self.line_by_pair_kind)),
            kinds=tuple(kind for kind in MEDIA_KINDS if kind in self.line_by_media_kind),
            place=f"{self.place}:{min(self.line_by_media_kind.values())}",
            paths_hash=self.stored_hash,
        )

    def plain(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {key: value for key, value in asdict(self).items() if key != "bad_rows"}


def parse_rows(
    rows: Iterable[tuple[int, Mapping[str, Any] | BadRow]],
    entry: DataEntry,
    summary: FileSummary,
    media: MediaValues | None = None,
) -> Iterator[tuple[int, Row]]:
    """Yield the usable rows with their numbers, and count them and bad rows in the summary.

    `media` reads the rows' images and clips; by default, these need absolute paths.

    Raises:
        DataError: if the columns cannot be understood, so that no row can be used.
    """
    media = media or MediaValues()
    parse = RowParser(entry.columns, entry.task, media)
    for line, row in rows:
        try:
            if isinstance(row, BadRow):
                raise RowError(row.message)
            parsed_row = parse(row)
            _require_within(parsed_row, entry.score_range)
        except LayoutError as error:
            raise DataError(f"{summary.place}:{line}: {error}") from None
        except RowError as error:
            summary.bad_rows.add(line, str(error))
            continue
        if parse.layout is not None and not summary.rows:
            summary.columns = parse.layout.describe()
            summary.draws_positives = parse.layout.is_labelled
            summary.is_single = parse.layout.is_single
        summary.add(line, parsed_row)
        summary.add_media(line, parsed_row)
        yield line, parsed_row


def _require_within(row: Row, score_range: tuple[float, float] | None) -> None:
    low, high = score_range or (-math.inf, math.inf)
    for score in row.scores:
        if not low <= score <= high:
            raise RowError(
                f"score {score:g} lies outside score_range {low:g} to {high:g}; correct one of them"
            )


@dataclass(frozen=True)
class DataDecisions:
    """The decisions about a dataset that depend on its whole file: task, prompt, scale of scores."""

    task: TaskKind
    prompt: str
    symmetric: bool
    score_range: tuple[float, float]
    notes: tuple[str, ...] = ()
    negatives: Negatives = "auto"

    def build_example(self, row: Row) -> Example:
        """Return the row as an example, its scores scaled to 0–1."""
        positive_scores = self._scale_scores(row.positive_scores)
        negative_scores = self._scale_scores(row.negative_scores)
        scores = (positive_scores, negative_scores)
        return Example(row.anchor, row.positives, row.negatives, *scores, row.label)

    def _scale_scores(self, scores: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if scores is None else tuple(map(self.scale_score, scores))

    def scale_score(self, score: float) -> float:
        """Return a score of the file, scaled to 0 to 1."""
        low, high = self.score_range
        return (score - low) / (high - low)


def decide_data(summary: FileSummary, entry: DataEntry) -> DataDecisions:
    """Return the dataset's task, prompt and scale of scores: the entry's, or decided from the counts.

    Raises:
        DataError: if there are bad rows (lists twenty problems and a count) or no rows, or if the rows
            disagree.
    """
    if summary.bad_rows.count:
        raise DataError(
            "\n".join(str(problem) for problem in summary.bad_rows.list_problems(summary.place))
        )
    if not summary.rows:
        raise DataError(f"{summary.place}: there are no rows; give a file with examples")
    _require_agreement(summary)
    task = _decide_task(summary, entry)
    if task == "sts" and not summary.scored_rows and summary.rows_with_negatives < summary.rows:
        raise DataError(
            f"{summary.place}: task sts needs a score for every pair, or negatives in every row; name the "
            "column as columns: {score: …}, or give another task"
        )
    scale, notes = _decide_scale(summary, entry, task)
    symmetric = entry.symmetric
    if symmetric is None:
        symmetric = task not in ("retrieval", "reranking")
    return DataDecisions(task, entry.prompt or "", symmetric, scale, notes, entry.negatives)


def _require_agreement(summary: FileSummary) -> None:
    for count, noun in ((summary.scored_rows, "scores"), (summary.rows_with_label, "a label")):
        if 0 < count < summary.rows:
            line, other = (
                summary.first_lines[f"without {noun}"],
                summary.first_lines[f"with {noun}"],
            )
            raise DataError(
                f"{summary.place}:{line}: this row has no {noun.removeprefix('a ')} and line {other} has; "
                "give them to every row or to none"
            )
    if len(summary.line_by_pair_kind) > 1:
        (first, line), (second, other), *_ = summary.line_by_pair_kind.items()
        raise DataError(
            f"{summary.place}:{other}: this row is a pair of {second} and line {line} one of {first}, and a "
            "batch has one kind of pair; put them into two files"
        )


def _decide_task(summary: FileSummary, entry: DataEntry) -> TaskKind:
    if entry.task is not None:
        return entry.task
    if summary.is_single:
        return "text"
    if summary.scored_rows and not summary.rows_with_negatives:
        return "pair_classification" if summary.zero_or_one else "sts"
    return "classification" if summary.rows_with_label and not summary.scored_rows else "retrieval"


def _decide_scale(
    summary: FileSummary, entry: DataEntry, task: TaskKind
) -> tuple[tuple[float, float], tuple[str, ...]]:
    if entry.score_range is not None:
        return entry.score_range, ()
    if not summary.scored_rows or (summary.lowest >= 0 and summary.highest <= 1):
        return (0.0, 1.0), ()
    if summary.lowest < 0 or summary.highest > 5 or task == "pair_classification":
        raise DataError(
            f"{summary.place}: scores run from {summary.lowest:g} to {summary.highest:g} and their scale "
            "is not given; write score_range: [lowest, highest] in the entry"
        )
    if (summary.lowest, summary.highest) == (0, 5):
        return (0.0, 5.0), ()
    note = (
        f"scores run from {summary.lowest:g} to {summary.highest:g} and are read on a scale of 0 to 5; "
        "write score_range to say otherwise"
    )
    return (0.0, 5.0), (note,)
