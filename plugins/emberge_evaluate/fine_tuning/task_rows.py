"""Rows of tasks: texts and targets of a head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberge import DataError
from emberge.contracts import has_media, plain_text
from emberge.data import PlainRows
from emberge.wording import join_some, printable

from emberge_evaluate.fine_tuning.task_entry import TaskEntry, TaskRowSource

_SHOWN = 20  # bad rows that an error lists
# Value that hub datasets have in place of a secret label.
_SECRET = "-1"


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
    def has_media(self) -> bool:
        """True if the texts have an image or a clip."""
        return has_media(self.text) or (self.second is not None and has_media(self.second))


class _UnfitError(Exception):
    """Error of a row that does not fit its task."""


@dataclass(frozen=True)
class _TaskSet:
    """A set of a task's rows: the task with the set's columns, the set, and its rows as stored."""

    entry: TaskEntry
    source: TaskRowSource
    plain_rows: PlainRows


def parse_rows(entry: TaskEntry, source: TaskRowSource, plain_rows: PlainRows) -> list[TaskRow]:
    """Return the rows of a set of a task.

    Raises:
        DataError: with `file:line` for rows that do not fit, and for a set without rows.
    """
    if not plain_rows.rows:
        raise DataError(
            f"{plain_rows.place}: task '{entry.name}' has no rows here; give it a set with some"
        )
    parse = _PARSERS[entry.head]
    task_set = _TaskSet(entry.with_columns_of(source), source, plain_rows)
    rows: list[TaskRow] = []
    faults: list[str] = []
    for number, row in plain_rows.rows:
        try:
            rows.append(parse(task_set, row))
        except _UnfitError as fault:
            faults.append(f"{plain_rows.at(number)}: {fault}")
    if faults:
        more = (
            [f"{plain_rows.place}: … and {len(faults) - _SHOWN} more"]
            if len(faults) > _SHOWN
            else []
        )
        raise DataError("\n".join([*faults[:_SHOWN], *more]))
    return rows


def _label_row(task_set: _TaskSet, row: Mapping[str, Any]) -> TaskRow:
    value = _read_gold(task_set.entry, row)
    if isinstance(value, list):  # of each step of a solution, which is right if all are
        value = all(value)
    label = _read_label(task_set, value)
    return TaskRow(_read_first(task_set, row), label, _read_second(task_set, row))


def _number_row(task_set: _TaskSet, row: Mapping[str, Any]) -> TaskRow:
    entry = task_set.entry
    values = [_read_column(row, name, "label") for name in entry.label]
    try:
        gold = sum(map(float, values)) / len(values)
        if not math.isfinite(gold):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        shown = ", ".join(map(repr, values))[:100]
        raise _UnfitError(f"{join_some(entry.label)}: no number to predict: {shown}") from None
    return TaskRow(_read_first(task_set, row), gold, _read_second(task_set, row))


def _read_word_row(task_set: _TaskSet, row: Mapping[str, Any]) -> TaskRow:
    entry = task_set.entry
    words, labels = _read_column(row, entry.text, "text"), _read_gold(entry, row)
    for name, value in ((entry.text, words), (entry.label[0], labels)):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _UnfitError(f"'{name}' is no list, and head: tokens wants a label for each word")
    if len(words) != len(labels):
        raise _UnfitError(
            f"{len(words)} words in '{entry.text}' and {len(labels)} labels in '{entry.label[0]}'"
        )
    words = [_read_word(word, entry.text) for word in words]
    spans, begin = [], 0
    for word in words:
        spans.append((begin, begin + len(word)))
        begin += len(word) + 1
    gold = tuple(_read_label(task_set, label) for label in labels)
    return TaskRow(" ".join(words), gold, words=tuple(spans))


def _read_answer_row(task_set: _TaskSet, row: Mapping[str, Any]) -> TaskRow:
    entry = task_set.entry
    value = _read_gold(entry, row)
    question, passage = _read_first(task_set, row), _read_second(task_set, row) or ""
    if has_media(question) or has_media(passage):
        raise _UnfitError("head: span reads text alone, and there is an image or a clip here")
    try:
        texts = tuple(_read_word(text, entry.label[0]) for text in value["text"])
        starts = list(map(int, value["answer_start"]))
        answers = Answers(texts, starts[0])
    except (KeyError, TypeError, ValueError, IndexError):
        raise _UnfitError(
            f"'{entry.label[0]}' has no answers as SQuAD gives them: "
            '{"text": ["…"], "answer_start": [0]}, with at least one'
        ) from None
    if not passage[answers.start :].startswith(texts[0]):
        raise _UnfitError(
            f"the answer {texts[0]!r} does not begin at character {answers.start} of the passage"
        )
    return TaskRow(question, answers, passage)


def _read_choice_row(task_set: _TaskSet, row: Mapping[str, Any]) -> TaskRow:
    entry = task_set.entry
    columns = [_read_column(row, name, "choices") for name in entry.choices]
    listed = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
    choices = tuple(_read_word(choice, entry.choices[0]) for choice in listed)
    value = _read_gold(entry, row)
    letters = "ABCDEFGHIJ"
    text = str(value)
    gold = letters.find(text) if len(text) == 1 and text in letters else None
    if gold is None:
        if not text.isdecimal():
            raise _UnfitError(f"'{entry.label[0]}' is no number from 0 or letter from A: {value!r}")
        gold = int(text)
    if gold >= len(choices):
        raise _UnfitError(
            f"'{entry.label[0]}' is {value!r}, and there are {len(choices)} choices, from 0"
        )
    return TaskRow(_read_first(task_set, row), gold, _read_second(task_set, row), choices=choices)


_PARSERS: Mapping[str, Callable[[_TaskSet, Mapping[str, Any]], TaskRow]] = {
    "classification": _label_row,
    "regression": _number_row,
    "tokens": _read_word_row,
    "span": _read_answer_row,
    "choice": _read_choice_row,
}


def _read_column(row: Mapping[str, Any], name: str, option: str) -> Any:
    if row.get(name) is None:
        raise _UnfitError(
            f"there is no '{name}'; name another column as `{option}`: {join_some(list(row), 8)}"
        )
    return row[name]


def _read_gold(entry: TaskEntry, row: Mapping[str, Any]) -> Any:
    return _read_column(row, entry.label[0], "label")


def _read_text(task_set: _TaskSet, row: Mapping[str, Any], name: str, option: str) -> str:
    """Return a column's text, with references in the place of its images and clips."""
    value = _read_column(row, name, option)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return plain_text(" ".join(value))
    try:
        with_media = task_set.plain_rows.media.read(value, name)
    except DataError as error:
        raise _UnfitError(printable(error)) from None
    if with_media is not None:
        return with_media
    if not isinstance(value, str):
        raise _UnfitError(f"'{name}' is no text but {value!r}"[:200])
    return plain_text(value)


def _read_word(value: Any, name: str) -> str:
    """Return a word, label or choice as text; refuse a value that is neither text nor a finite number."""
    if not isinstance(value, str | int | float) or value != value:
        raise _UnfitError(f"'{name}' has {value!r} where a word or a number belongs"[:200])
    return plain_text(str(value))


def _read_first(task_set: _TaskSet, row: Mapping[str, Any]) -> str:
    return _read_text(task_set, row, task_set.entry.text, "text")


def _read_second(task_set: _TaskSet, row: Mapping[str, Any]) -> str | None:
    name = task_set.entry.second
    return None if name is None else _read_text(task_set, row, name, "second")


def _read_label(task_set: _TaskSet, value: Any) -> str:
    """Return a label as text; a number is an index into the task's `labels`, if it has them."""
    entry = task_set.entry
    text = str(int(value)) if isinstance(value, bool) else _read_word(value, entry.label[0])
    if text == _SECRET:
        raise _UnfitError(
            f"'{entry.label[0]}' is -1, which means that the label is not given; take another split"
        )
    text = task_set.source.labels.get(text, text)
    if not entry.labels or text in entry.labels:
        return text
    if text.isdecimal() and int(text) < len(entry.labels):
        return entry.labels[int(text)]
    raise _UnfitError(
        f"the label {text!r} is none of the {len(entry.labels)} that the head has: "
        f"{join_some(entry.labels, 8)}; add it to `labels`, or take that out"
    )


def labels_of(rows: Sequence[TaskRow]) -> Iterator[str]:
    """Yield the labels of rows or their words."""
    for row in rows:
        if isinstance(row.gold, tuple):
            yield from row.gold
        else:
            yield str(row.gold)
