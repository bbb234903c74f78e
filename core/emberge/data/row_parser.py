"""The parser of rows, which knows the part of each column in an example."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from emberge.contracts import TaskKind, strip_media_marks
from emberge.data.columns import ColumnLayout, LayoutError, find_layout, find_media_kind
from emberge.data.entry import Columns
from emberge.data.media_values import MediaValues
from emberge.errors import DataError

_TYPE_NAMES = {
    **{"NoneType": "null", "dict": "an object", "list": "a list", "str": "text"},
    **{"bool": "true or false", "int": "a number", "float": "a number"},
}


class RowError(Exception):
    """A row that cannot be used; the message has the reason and the remedy."""


class Row(NamedTuple):
    """A parsed row, with the file's scores unscaled."""

    anchor: str
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    positive_scores: tuple[float, ...] | None = None
    negative_scores: tuple[float, ...] | None = None
    label: str | None = None

    @property
    def scores(self) -> tuple[float, ...]:
        """All scores, those of positives first; none if the row has no scores."""
        return (*(self.positive_scores or ()), *(self.negative_scores or ()))


class RowParser:
    """The parser of one file's rows, all of which must have the same parts as the first row.

    `media` reads images and clips in columns, which become references within texts.
    """

    def __init__(
        self, columns: Columns, task: TaskKind | None = None, media: MediaValues | None = None
    ) -> None:
        self.columns = columns
        self.task = task
        self.media = media or MediaValues()
        self.layout: ColumnLayout | None = None
        self._layout_by_names: dict[tuple[str, ...], ColumnLayout | str] = {}
        self._composed_names = [
            name for name in vars(columns).values() if name and set(name) & {".", "+"}
        ]

    def __call__(self, row: Mapping[str, Any]) -> Row:
        """Parse the row's texts, scores and label.

        Raises:
            LayoutError: if the first row's columns cannot be understood.
            RowError: if this row cannot be used.
        """
        row = self._add_fields(row)
        key = tuple(row)
        if key not in self._layout_by_names:
            self._layout_by_names[key] = self._find_row_layout(key)
        layout = self._layout_by_names[key]
        if isinstance(layout, str):
            raise RowError(layout)
        return self._read_row(row, layout)

    def find_first_layout(self, row: Mapping[str, Any]) -> ColumnLayout:
        """Return the part of each column in a first row.

        Raises:
            LayoutError: if the columns cannot be understood.
        """
        return find_layout(tuple(self._add_fields(row)), self.columns, self.task)

    def _add_fields(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with values for names of nested columns (`texts.0`) and of columns joined by `+`."""
        fields: dict[str, Any] = {}
        for name in self._composed_names:
            parts = [_read_column(row, part) for part in name.split("+")]
            if name not in row and None not in parts:
                fields[name] = parts[0] if len(parts) == 1 else "\n".join(map(str, parts))
        return {**row, **fields} if fields else row

    def _find_row_layout(self, names: tuple[str, ...]) -> ColumnLayout | str:
        """Return the part of each column of a row, or why rows with these columns cannot be used."""
        if self.layout is None:
            self.layout = find_layout(names, self.columns, self.task)
            return self.layout
        first = self.layout
        label = first.label if first.is_labelled else None
        for name in filter(None, (first.anchor, *first.positives[:1], label)):
            if name not in names:
                listed = ", ".join(names) or "none"
                return f"column '{name}' is missing (columns: {listed}); add it or remove the row"
        if first.is_single:
            return first
        try:
            layout = find_layout(names, self.columns, self.task)
        except LayoutError as error:
            return str(error)
        return replace(layout, positives=()) if first.is_labelled else layout

    def _read_row(self, row: Mapping[str, Any], layout: ColumnLayout) -> Row:
        anchor = self._read_text(row[layout.anchor], layout.anchor)
        if layout.is_single:
            return Row(anchor)
        label = _read_label(row.get(layout.label), layout.label) if layout.label else None
        if layout.is_labelled:
            if label is None:
                raise RowError(f"'{layout.label}' is empty; give the row a label or remove it")
            return Row(anchor, label=label)
        positives = self._read_texts(row, layout.positives)
        if not positives:
            raise RowError(
                f"'{layout.positives[0]}' is empty; a row needs a positive, so add it or remove the row"
            )
        negatives = self._read_texts(row, layout.negatives)
        scores = _read_scores(row, layout, len(positives), len(negatives))
        return Row(anchor, positives, negatives, *scores, label)

    def _read_text(self, value: Any, column: str) -> str:
        """Return a column's text, with references in place of its media."""
        try:
            if (with_media := self.media.read(value, column)) is not None:
                return with_media
        except DataError as error:
            raise RowError(str(error)) from None
        if not isinstance(value, str):
            raise RowError(
                f"'{column}' must be text, not {_describe_type(value)}; correct or remove it"
            )
        if not value.strip():
            raise RowError(f"'{column}' is empty or only white space; fill it or remove the row")
        return strip_media_marks(value)

    def _read_texts(self, row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
        texts: list[str] = []
        for column in columns:
            value = row.get(column)
            if isinstance(value, list | tuple):
                kind = find_media_kind(column)
                texts += [
                    self._read_text(item if kind is None else {kind: item}, f"{column}[{i}]")
                    for i, item in enumerate(value)
                ]
            elif value is not None:
                texts.append(self._read_text(value, column))
        return tuple(texts)


def _read_column(row: Mapping[str, Any], name: str) -> Any:
    """Return a column, or a field of its records or lists; None if the row has none of that name."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _read_label(value: Any, column: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and not value.strip():
        raise RowError(f"'{column}' is empty; give the row a label or remove it")
    if not isinstance(value, str | int):
        raise RowError(f"'{column}' must be a word or a whole number, not {_describe_type(value)}")
    return str(value)


def _read_scores(
    row: Mapping[str, Any], layout: ColumnLayout, positives: int, negatives: int
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Return the scores of positives and of negatives, from a column each or from one for both."""
    if layout.score is None:
        return (
            _read_list(row, layout.positive_scores, positives, "positives"),
            _read_list(row, layout.negative_scores, negatives, "negatives"),
        )
    value = row.get(layout.score)
    if value is None:
        return None, None
    values = value if isinstance(value, list | tuple) else [value]
    scores = tuple(_read_number(item, layout.score) for item in values)
    if layout.unit_score and not all(0 <= n <= 1 for n in scores):
        raise RowError(
            f"'{layout.score}' is {value!r}, neither 0 or 1 nor between; if it is a score, write "
            f"columns: {{anchor: {layout.anchor}, positive: {layout.positives[0]}, score: {layout.score}}} "
            "and score_range"
        )
    if len(scores) == positives:
        return scores, None
    if len(scores) == positives + negatives:
        return scores[:positives], scores[positives:]
    raise RowError(
        f"'{layout.score}' has {len(scores)} scores for {positives} positives and {negatives} negatives; "
        "give one for each text"
    )


def _read_list(
    row: Mapping[str, Any], column: str | None, count: int, noun: str
) -> tuple[float, ...] | None:
    value = row.get(column) if column else None
    if value is None or column is None:
        return None
    if not isinstance(value, list | tuple):
        raise RowError(f"'{column}' must be a list of numbers, not {_describe_type(value)}")
    if len(value) != count:
        raise RowError(f"'{column}' has {len(value)} scores for {count} {noun}; give one for each")
    return tuple(_read_number(item, column) for item in value)


def _read_number(value: Any, column: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise RowError(f"'{column}' must be a number, not {_describe_type(value)}")
    try:
        number = float(value)  # readers of plain text do not know which columns are numbers
    except ValueError:
        raise RowError(f"'{column}' must be a number, not {value!r}") from None
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise RowError(f"'{column}' is {number}; give a finite number or remove the row")
    return number


def _describe_type(value: Any) -> str:
    name = type(value).__name__
    return _TYPE_NAMES.get(name, f"a {name}")
