"""Rows of a task: read with all their columns, and parsed into texts with a gold label for the head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import BadRow, DataEntry, DataError, DataRef, Reader
from emberge.contracts import has_media, strip_media_marks
from emberge.data import (
    DataSource,
    MediaValues,
    RowProblems,
    fold_headings,
    list_sources,
    sample_rows,
)
from emberge.media import MediaFolder
from emberge.wording import join_some

from emberge_fine_tuned.options import TaskEntry, TaskRowSource


@dataclass(frozen=True)
class PlainRows:
    """Rows of one file or hub dataset as mappings, each with its number.

    `media` reads the images and clips of the rows; paths are relative to the rows' file.
    """

    name: str
    place: str
    content_hash: str
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    media: MediaValues = field(default_factory=MediaValues, compare=False, repr=False)

    def refuse(self, problems: Iterable[tuple[int, str]]) -> None:
        """Require that no row has a problem; each is (number of the row, message).

        Raises:
            DataError: if there is one; has a line for each, with its rows.
        """
        bad_rows = RowProblems()
        for number, message in problems:
            bad_rows.add(number, message)
        if bad_rows.count:
            raise DataError("\n".join(map(str, bad_rows.list_problems(self.place))))


def read_plain_rows(
    entry: DataEntry,
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    store: Path | None = None,
) -> PlainRows | None:
    """Return an entry's rows, at most its limit; None if a step has not written them yet.

    Media that rows have as bytes are written to the folder `store`, or to a temporary one.

    Raises:
        DataError: if the entry is not one file or hub dataset, or rows are bad; has a line for each problem.
        ConnectionError: if the hub cannot be reached.
    """
    sources = list_sources(entry, readers=readers, resolve=resolve)
    if not sources:
        return None
    if len(sources) > 1:
        raise DataError(f"{sources[0].place}: one file is wanted here, not a catalogue of several")
    source = sources[0]
    media = MediaValues(MediaFolder(store, read_from=source.path and source.path.parent))
    problems: list[tuple[int, str]] = []
    rows = list(_read_rows(source, media, problems))
    chosen_rows = [rows[row] for row in sample_rows(len(rows), entry.limit, source.name)]
    plain_rows = PlainRows(source.name, source.place, source.compute_key(), chosen_rows, media)
    plain_rows.refuse(problems)
    return plain_rows


def _read_rows(
    source: DataSource, media: MediaValues, problems: list[tuple[int, str]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows with their numbers; media are files at once, as those of all rows may not fit memory."""
    for number, row in source.rows():
        if isinstance(row, BadRow):
            problems.append((number, row.message))
            continue
        try:
            yield number, media.save_bytes(fold_headings(row))
        except DataError as error:
            problems.append((number, str(error)))


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to a question in a passage, and the character at which the first one begins."""

    texts: tuple[str, ...]
    start: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row: a text, perhaps its second text or words, and its gold label.

    Images and clips are references within the texts (see `emberge.join_parts`). `words` has the first
    character and the end of each word in `text`. `gold` is a label, a number, a label for each word, or
    answers.
    """

    text: str
    gold: str | float | tuple[str, ...] | Answers
    second: str | None = None
    words: tuple[tuple[int, int], ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The gold label, or the label of each word."""
        return self.gold if isinstance(self.gold, tuple) else (str(self.gold),)

    @property
    def has_media(self) -> bool:
        """True if the texts have an image or a clip."""
        return has_media(self.text) or (self.second is not None and has_media(self.second))


class _UnfitError(Exception):
    """Error of a row that does not fit its task."""


def parse_rows(entry: TaskEntry, source: TaskRowSource, plain_rows: PlainRows) -> list[TaskRow]:
    """Return the rows of a set of a task.

    Raises:
        DataError: with `file:line` for rows that do not fit, and for a set without rows.
    """
    if not plain_rows.rows:
        raise DataError(
            f"{plain_rows.place}: task '{entry.name}' has no rows here; give it a set with some"
        )
    entry = entry.with_row_columns_of(source)
    rows: list[TaskRow] = []
    problems: list[tuple[int, str]] = []
    for number, row in plain_rows.rows:
        try:
            rows.append(_PARSERS[entry.head](_StoredRow(row, entry, source.labels, plain_rows)))
        except _UnfitError as error:
            problems.append((number, str(error)))
    plain_rows.refuse(problems)
    return rows


@dataclass(frozen=True)
class _StoredRow:
    """A row as stored, with the columns of its set, and other names of the task's labels."""

    row: Mapping[str, Any]
    entry: TaskEntry
    names: Mapping[str, str]
    plain_rows: PlainRows

    def read(self, name: str, option: str) -> Any:
        """Return the value of a column, which the recipe names as `option`."""
        if self.row.get(name) is None:
            columns = join_some(list(self.row), 8)
            raise _UnfitError(f"there is no '{name}'; name another column as `{option}`: {columns}")
        return self.row[name]

    @property
    def gold(self) -> Any:
        return self.read(self.entry.label[0], "label")

    @property
    def first(self) -> str:
        return self._read_text(self.entry.text, "text")

    @property
    def second(self) -> str | None:
        name = self.entry.second
        return None if name is None else self._read_text(name, "second")

    def _read_text(self, name: str, option: str) -> str:
        """Return a column's text, with references in the place of its images and clips."""
        value = self.read(name, option)
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return strip_media_marks(" ".join(value))
        try:
            with_media = self.plain_rows.media.read(value, name)
        except DataError as error:
            raise _UnfitError(str(error)) from None
        if with_media is not None:
            return with_media
        if not isinstance(value, str):
            raise _UnfitError(f"'{name}' is no text but {value!r}"[:200])
        return strip_media_marks(value)

    def read_label(self, value: Any) -> str:
        """Return a label as text; a number is an index into the task's `labels`, if it has them."""
        column, labels = self.entry.label[0], self.entry.labels
        text = str(int(value)) if isinstance(value, bool) else _read_word(value, column)
        if text == "-1":
            raise _UnfitError(
                f"'{column}' is -1, which means that the label is not given; take another split"
            )
        text = self.names.get(text, text)
        if not labels or text in labels:
            return text
        if text.isdecimal() and int(text) < len(labels):
            return labels[int(text)]
        raise _UnfitError(
            f"the label {text!r} is none of the {len(labels)} that the head has: {join_some(labels, 8)}; add "
            "it to `labels`, or take that out"
        )


def _read_word(value: Any, name: str) -> str:
    """Return a word or label as text; refuse a value that is neither text nor a finite number."""
    if not isinstance(value, str | int | float) or value != value:
        raise _UnfitError(f"'{name}' has {value!r} where a word or a number belongs"[:200])
    return strip_media_marks(str(value))


def _parse_label(row: _StoredRow) -> TaskRow:
    value = row.gold
    if isinstance(value, list):  # of each step of a solution, which is right if all are
        value = all(value)
    return TaskRow(row.first, row.read_label(value), row.second)


def _parse_number(row: _StoredRow) -> TaskRow:
    columns = row.entry.label
    values = [row.read(name, "label") for name in columns]
    try:
        gold = sum(map(float, values)) / len(values)
    except (TypeError, ValueError, OverflowError):
        gold = math.nan
    if not math.isfinite(gold):
        shown = ", ".join(map(repr, values))[:100]
        raise _UnfitError(f"{join_some(columns)}: no number to predict: {shown}")
    return TaskRow(row.first, gold, row.second)


def _parse_words(row: _StoredRow) -> TaskRow:
    text, label = row.entry.text, row.entry.label[0]
    words, labels = row.read(text, "text"), row.gold
    for name, value in ((text, words), (label, labels)):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _UnfitError(f"'{name}' is no list, and head: tokens wants a label for each word")
    if len(words) != len(labels):
        raise _UnfitError(f"{len(words)} words in '{text}' and {len(labels)} labels in '{label}'")
    words = [_read_word(word, text) for word in words]
    spans, begin = [], 0
    for word in words:
        spans.append((begin, begin + len(word)))
        begin += len(word) + 1
    return TaskRow(" ".join(words), tuple(map(row.read_label, labels)), words=tuple(spans))


def _parse_answers(row: _StoredRow) -> TaskRow:
    label, value = row.entry.label[0], row.gold
    question, passage = row.first, row.second or ""
    if has_media(question) or has_media(passage):
        raise _UnfitError("head: span reads text alone, and there is an image or a clip here")
    try:
        texts = tuple(_read_word(text, label) for text in value["text"])
        first, start = texts[0], int(value["answer_start"][0])
    except (KeyError, TypeError, ValueError, IndexError):
        raise _UnfitError(
            f"'{label}' has no answers as SQuAD gives them: "
            '{"text": ["…"], "answer_start": [0]}, with at least one'
        ) from None
    if not passage[start:].startswith(first):
        raise _UnfitError(
            f"the answer {first!r} does not begin at character {start} of the passage"
        )
    return TaskRow(question, Answers(texts, start), passage)


_PARSERS: Mapping[str, Callable[[_StoredRow], TaskRow]] = {
    "classification": _parse_label,
    "regression": _parse_number,
    "tokens": _parse_words,
    "span": _parse_answers,
}
