"""Rows of tasks: texts and targets of a head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberge import DataError
from emberge.data import PlainRows
from emberge.wording import join_some

from emberge_evaluate.fine_tuning.task_entry import TaskEntry

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

    `words` has the first character and the end of each word in `text`. `gold` is a label, a number, a label
    for each word, answers, or the position of the right choice.
    """

    text: str
    gold: str | float | tuple[str, ...] | Answers | int
    second: str | None = None
    words: tuple[tuple[int, int], ...] = ()
    choices: tuple[str, ...] = ()


class _UnfitError(Exception):
    """Error of a row that does not fit its task."""


def parse_rows(entry: TaskEntry, plain_rows: PlainRows) -> list[TaskRow]:
    """Return the rows of a task's set.

    Raises:
        DataError: with `file:line` for rows that do not fit, and for a set without rows.
    """
    if not plain_rows.rows:
        raise DataError(
            f"{plain_rows.place}: task '{entry.name}' has no rows here; give it a set with some"
        )
    parse = _PARSERS[entry.head]
    rows: list[TaskRow] = []
    faults: list[str] = []
    for number, row in plain_rows.rows:
        try:
            rows.append(parse(entry, row))
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


def _label_row(entry: TaskEntry, row: Mapping[str, Any]) -> TaskRow:
    value = _read_gold(entry, row)
    if isinstance(value, list):  # of each step of a solution, which is right if all are
        value = all(value)
    return TaskRow(
        _read_text(row, entry.text, "text"), _read_label(entry, value), _read_second(entry, row)
    )


def _number_row(entry: TaskEntry, row: Mapping[str, Any]) -> TaskRow:
    values = [_read_column(row, name, "label") for name in entry.label]
    try:
        gold = sum(map(float, values)) / len(values)
        if not math.isfinite(gold):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        shown = ", ".join(map(repr, values))[:100]
        raise _UnfitError(f"{join_some(entry.label)}: no number to predict: {shown}") from None
    return TaskRow(_read_text(row, entry.text, "text"), gold, _read_second(entry, row))


def _read_word_row(entry: TaskEntry, row: Mapping[str, Any]) -> TaskRow:
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
    gold = tuple(_read_label(entry, label) for label in labels)
    return TaskRow(" ".join(words), gold, words=tuple(spans))


def _read_answer_row(entry: TaskEntry, row: Mapping[str, Any]) -> TaskRow:
    value = _read_gold(entry, row)
    passage = _read_text(row, str(entry.second), "second")
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
    return TaskRow(_read_text(row, entry.text, "text"), answers, passage)


def _read_choice_row(entry: TaskEntry, row: Mapping[str, Any]) -> TaskRow:
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
    return TaskRow(
        _read_text(row, entry.text, "text"), gold, _read_second(entry, row), choices=choices
    )


_PARSERS: Mapping[str, Callable[[TaskEntry, Mapping[str, Any]], TaskRow]] = {
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


def _read_text(row: Mapping[str, Any], name: str, option: str) -> str:
    value = _read_column(row, name, option)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise _UnfitError(f"'{name}' is no text but {value!r}"[:200])
    return value


def _read_word(value: Any, name: str) -> str:
    """Return a word, label or choice as text; refuse a value that is neither text nor a finite number."""
    if not isinstance(value, str | int | float) or value != value:
        raise _UnfitError(f"'{name}' has {value!r} where a word or a number belongs"[:200])
    return str(value)


def _read_second(entry: TaskEntry, row: Mapping[str, Any]) -> str | None:
    return None if entry.second is None else _read_text(row, entry.second, "second")


def _read_label(entry: TaskEntry, value: Any) -> str:
    """Return a label as text; a number is an index into the task's `labels`, if it has them."""
    text = str(int(value)) if isinstance(value, bool) else _read_word(value, entry.label[0])
    if text == _SECRET:
        raise _UnfitError(
            f"'{entry.label[0]}' is -1, which means that the label is not given; take another split"
        )
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
