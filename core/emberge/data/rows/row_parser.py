"""The parser of rows, which knows the part of each column in an example."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from emberge.contracts import TaskKind, plain_text
from emberge.data.entry import Columns
from emberge.data.rows.columns import ColumnLayout, LayoutError, column_kind, find_layout
from emberge.data.rows.media_values import MediaValues
from emberge.errors import DataError


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
    prompt: str | None = None
    kind: str | None = None


class RowParser:
    """The parser of one file's rows, all of which must have the same parts as the first row.

    `media` reads images and clips in columns, which become references within texts.
    """

    def __init__(
        self,
        columns: Columns,
        task: TaskKind | None = None,
        media: MediaValues | None = None,
    ) -> None:
        self.columns = columns
        self.task = task
        self.media = media or MediaValues()
        self.layout: ColumnLayout | None = None
        self._known: dict[tuple[str, ...], ColumnLayout | str] = {}
        self._fields = [name for name in vars(columns).values() if name and set(name) & {".", "+"}]

    def __call__(self, row: Mapping[str, Any]) -> Row:
        """Parse the row's texts, scores and label.

        Raises:
            LayoutError: if the first row's columns cannot be understood.
            RowError: if this row cannot be used.
        """
        row = self._add_fields(row)
        key = tuple(row)
        if key not in self._known:
            self._known[key] = self._look(key)
        layout = self._known[key]
        if isinstance(layout, str):
            raise RowError(layout)
        return _read_row(row, layout, self.media)

    def find_layout(self, row: Mapping[str, Any]) -> ColumnLayout:
        """Return the part of each column in a first row.

        Raises:
            LayoutError: if the columns cannot be understood.
        """
        return find_layout(tuple(self._add_fields(row)), self.columns, self.task)

    def _add_fields(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**row, **_read_fields(row, self._fields)} if self._fields else row

    def _look(self, names: tuple[str, ...]) -> ColumnLayout | str:
        if self.layout is None:
            self.layout = find_layout(names, self.columns, self.task)
            return self.layout
        first = self.layout
        needed = [first.anchor, *first.positives[:1]]
        if first.labelled and first.label:
            needed.append(first.label)
        for name in needed:
            if name not in names:
                listed = ", ".join(names) or "none"
                return f"column '{name}' is missing (columns: {listed}); add it or remove the row"
        if first.single:
            return first
        try:
            layout = find_layout(names, self.columns, self.task)
        except LayoutError as error:
            return str(error)
        return replace(layout, positives=()) if first.labelled else layout


def _read_fields(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of nested columns under dotted names (`texts.0`) and under names joined by `+`."""
    values: dict[str, Any] = {}
    for name in names:
        parts = [_read_column(row, part) for part in name.split("+")]
        if name not in row and None not in parts:
            values[name] = parts[0] if len(parts) == 1 else "\n".join(map(str, parts))
    return values


def _read_column(row: Mapping[str, Any], name: str) -> Any:
    """Return a column, or a field of its records or lists; None if the row has none of that name."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = _read_field(value, part)
    return value


def _read_field(value: Any, part: str) -> Any:
    """Return a record's field, or the entry of a list with a number; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    return None


def _read_row(row: Mapping[str, Any], layout: ColumnLayout, media: MediaValues) -> Row:
    anchor = _read_text(row[layout.anchor], layout.anchor, media)
    if layout.single:
        return Row(anchor)
    label = _read_label(row.get(layout.label), layout.label) if layout.label else None
    if layout.labelled:
        if label is None:
            raise RowError(f"'{layout.label}' is empty; give the row a label or remove it")
        return Row(anchor, label=label)
    positives = _read_texts(row, layout.positives, media)
    if not positives:
        raise RowError(
            f"'{layout.positives[0]}' holds no positive; a row needs one, so add it or remove the row"
        )
    negatives = _read_texts(row, layout.negatives, media)
    positive_scores, negative_scores = _read_both_scores(
        row, layout, len(positives), len(negatives)
    )
    return Row(
        anchor,
        positives,
        negatives,
        positive_scores,
        negative_scores,
        label,
        _read_optional(row, layout.prompt),
        _read_optional(row, layout.kind),
    )


def _read_text(value: Any, column: str, media: MediaValues) -> str:
    """Return a column's text, with references in place of its media."""
    try:
        if (with_media := media.read(value, column)) is not None:
            return with_media
    except DataError as error:
        raise RowError(str(error)) from None
    if not isinstance(value, str):
        raise RowError(f"'{column}' must be text, not {_describe_kind(value)}")
    if not value.strip():
        raise RowError(f"'{column}' is empty or only white space; fill it or remove the row")
    return plain_text(value)


def _read_texts(
    row: Mapping[str, Any], columns: Sequence[str], media: MediaValues
) -> tuple[str, ...]:
    texts: list[str] = []
    for column in columns:
        value = row.get(column)
        if value is None:
            continue
        if isinstance(value, list | tuple):
            kind = column_kind(column)
            texts += [
                _read_text(item if kind is None else {kind: item}, f"{column}[{i}]", media)
                for i, item in enumerate(value)
            ]
        else:
            texts.append(_read_text(value, column, media))
    return tuple(texts)


def _read_label(value: Any, column: str | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and not value.strip():
        raise RowError(f"'{column}' is empty; give the row a label or remove it")
    if not isinstance(value, str | int):
        raise RowError(f"'{column}' must be a word or a whole number, not {_describe_kind(value)}")
    return str(value)


def _read_optional(row: Mapping[str, Any], column: str | None) -> str | None:
    value = row.get(column) if column else None
    if value is not None and not isinstance(value, str):
        raise RowError(f"'{column}' must be text, not {_describe_kind(value)}")
    return None if value is None else plain_text(value)


def _read_both_scores(
    row: Mapping[str, Any], layout: ColumnLayout, positives: int, negatives: int
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    if layout.score is None:
        return (
            _read_scores(row, layout.positive_scores, positives, "positives"),
            _read_scores(row, layout.negative_scores, negatives, "negatives"),
        )
    value = row.get(layout.score)
    if value is None:
        return None, None
    scores = tuple(
        _read_number(v, layout.score)
        for v in (value if isinstance(value, list | tuple) else [value])
    )
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


def _read_scores(
    row: Mapping[str, Any], column: str | None, texts: int, kind: str
) -> tuple[float, ...] | None:
    value = row.get(column) if column else None
    if value is None or column is None:
        return None
    if not isinstance(value, list | tuple):
        raise RowError(f"'{column}' must be a list of numbers, not {_describe_kind(value)}")
    if len(value) != texts:
        raise RowError(f"'{column}' has {len(value)} scores for {texts} {kind}; give one for each")
    return tuple(_read_number(item, column) for item in value)


def _read_number(value: Any, column: str) -> float:
    if isinstance(value, str):  # readers of plain text do not know which columns are numbers
        try:
            value = float(value)
        except ValueError:
            raise RowError(f"'{column}' must be a number, not {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f"'{column}' must be a number, not {_describe_kind(value)}")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise RowError(f"'{column}' is {number}; give a finite number or remove the row")
    return number


def _describe_kind(value: Any) -> str:
    names = {
        "NoneType": "nothing",
        "dict": "an object",
        "list": "a list",
        "str": "text",
        "bool": "true or false",
        "int": "a number",
        "float": "a number",
    }
    return names.get(type(value).__name__, f"a {type(value).__name__}")
