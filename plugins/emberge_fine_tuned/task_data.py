"""Data of a task: training, development and test rows with the targets of a head, and its classes."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge import DataError, DataRef, Reader, draw_order, make_seed
from emberge.contracts import has_media, strip_media_marks
from emberge.wording import join_some

from emberge_fine_tuned.options import TaskEntry, TaskRowSource
from emberge_fine_tuned.plain_rows import PlainRows, read_plain_rows

# Share and largest number of training rows that are held out to choose settings on.
_DEV_SHARE, _MOST_DEV = 0.1, 2000


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to a question in a passage, and the character at which the first one begins."""

    texts: tuple[str, ...]
    start: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row: a text, perhaps its second text, words or choices, and its gold label.

    Images and clips are references within the texts (see `emberge.join_parts`). `words` has the first
    character and the end of each word in `text`. `gold` is a label, a number, a label for each word, answers,
    or the position of the right choice.
    """

    text: str
    gold: str | float | tuple[str, ...] | Answers | int
    second: str | None = None
    words: tuple[tuple[int, int], ...] = ()
    choices: tuple[str, ...] = ()

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
    entry = entry.with_columns_of(source)
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
    """Return a word, label or choice as text; refuse a value that is neither text nor a finite number."""
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


def _parse_choice(row: _StoredRow) -> TaskRow:
    label, text = row.entry.label[0], str(row.gold)
    columns = [row.read(name, "choices") for name in row.entry.choices]
    listed = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
    choices = tuple(_read_word(choice, row.entry.choices[0]) for choice in listed)
    if not text.isdecimal() or int(text) >= len(choices):
        raise _UnfitError(f"'{label}' is {text!r}, and there are {len(choices)} choices, from 0")
    return TaskRow(row.first, int(text), row.second, choices=choices)


_PARSERS: Mapping[str, Callable[[_StoredRow], TaskRow]] = {
    "classification": _parse_label,
    "regression": _parse_number,
    "tokens": _parse_words,
    "span": _parse_answers,
    "choice": _parse_choice,
}


@dataclass(frozen=True)
class TaskData:
    """Rows of a task; `classes` are the head's, in the order of its outputs, for heads with classes.

    `test` has the rows of each test set by its name; `key` is a hash of all rows and of the options that read
    them. If one row `has_media`, the texts of every row are the parts of one input.
    """

    entry: TaskEntry
    train: Sequence[TaskRow]
    dev: Sequence[TaskRow]
    test: Mapping[str, Sequence[TaskRow]]
    classes: tuple[str, ...]
    key: str
    has_media: bool = False

    @functools.cached_property
    def number_of(self) -> Mapping[str, int]:
        """The number of each class."""
        return {label: number for number, label in enumerate(self.classes)}


def load_task(
    entry: TaskEntry,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    store: Path | None = None,
) -> TaskData | None:
    """Return a task's data with all rows checked; None while a step has not yet written some of it.

    Images and clips that rows have as bytes are written to the folder `store`, or a temporary one.

    Raises:
        DataError: for rows that do not fit, and for classes that are not in the training rows.
    """
    plain_sets: list[PlainRows] = []
    for source in entry.sources:
        try:
            plain_rows = read_plain_rows(
                source.entry, readers=readers, resolve=resolve, store=store
            )
        except ConnectionError as error:
            raise DataError(str(error)) from error
        if plain_rows is None:
            return None
        plain_sets.append(plain_rows)
    sets = [
        parse_rows(entry, source, plain_rows)
        for source, plain_rows in zip(entry.sources, plain_sets, strict=True)
    ]
    first_test = 1 + len(entry.dev)
    names = [
        source.given_name or plain_rows.name
        for source, plain_rows in zip(entry.test, plain_sets[first_test:], strict=True)
    ]
    if len(set(names)) < len(names):
        raise DataError(f"task '{entry.name}': two test sets have one name; give each a `name`")
    classes: tuple[str, ...] = ()
    if entry.has_classes:
        classes = entry.labels or _sort_labels(sets[0])
        _require_classes(entry, classes, [rows.place for rows in plain_sets], sets)
    train, dev = sets[0], [row for rows in sets[1:first_test] for row in rows]
    if not dev:
        train, dev = _hold_out(entry, train)
    return TaskData(
        entry=entry,
        train=train,
        dev=dev,
        test=dict(zip(names, sets[first_test:], strict=True)),
        classes=classes,
        key=_hash_data(entry, plain_sets),
        has_media=any(row.has_media for rows in sets for row in rows),
    )


def _hash_data(entry: TaskEntry, plain_sets: Sequence[PlainRows]) -> str:
    """Return a hash of the rows, of the media that they refer to, and of the options that read them."""
    content = [entry.name, repr(replace(entry, columns="mean"))]
    for plain_set in plain_sets:
        content += [plain_set.key, *sorted(plain_set.media.hashes)]
    return hashlib.sha256("\x1f".join(content).encode()).hexdigest()


def _sort_labels(rows: Sequence[TaskRow]) -> tuple[str, ...]:
    """Return the labels in order: numbers by value, other words by letters."""
    labels = _list_labels(rows)
    if all(label.isdigit() for label in labels):
        return tuple(sorted(labels, key=int))
    return tuple(sorted(labels))


def _list_labels(rows: Sequence[TaskRow]) -> set[str]:
    return {label for row in rows for label in row.labels}


def _require_classes(
    entry: TaskEntry,
    classes: Sequence[str],
    places: Sequence[str],
    sets: Sequence[Sequence[TaskRow]],
) -> None:
    """Require two classes, and training rows of every class and of every label of another set.

    Raises:
        DataError: with a line for each set.
    """
    learned = _list_labels(sets[0])
    problems = [] if len(classes) > 1 else [f"{places[0]}: one label, and there must be two"]
    for place, labels in zip(places, [set(classes), *map(_list_labels, sets[1:])], strict=True):
        if unlearned := sorted(labels - learned):
            problems.append(
                f"{place}: the label {join_some(unlearned, 5)} is in no row of `train`; add some, or take it "
                "out"
            )
    if problems:
        raise DataError("\n".join(f"task '{entry.name}': {problem}" for problem in problems))


def _hold_out(entry: TaskEntry, rows: Sequence[TaskRow]) -> tuple[list[TaskRow], list[TaskRow]]:
    """Return (training rows, development rows), split by a seed from the task's name.

    Raises:
        DataError: if no training row would be left.
    """
    count = min(_MOST_DEV, math.ceil(len(rows) * _DEV_SHARE))
    if count == len(rows):
        raise DataError(
            f"task '{entry.name}': {len(rows)} training rows are too few; give `dev`, or more rows"
        )
    dev_positions = set(draw_order(len(rows), make_seed("dev", entry.name))[:count].tolist())
    parts: tuple[list[TaskRow], list[TaskRow]] = ([], [])
    for position, row in enumerate(rows):
        parts[position in dev_positions].append(row)
    return parts
