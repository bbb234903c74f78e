"""Heat map: a table of numbers as coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import LINE, NAME_WIDTH, count_lines, name_text, text

# Rows of cells; None is a cell without a number.
Values = Sequence[Sequence[float | None]]

WIDTH = 1040
_LETTER_WIDTH, _DIGIT_WIDTH = 6.8, 6.3
_WIDEST, _TALLEST, _FLATTEST = 64.0, 40.0, 18.0
_HEIGHT = 480.0  # of all rows, where they are not flattest
_FAINT, _STRONG = 0.05, 0.55  # opacities; numbers stay readable on the strongest
_STEPS = 24  # of the scale


@dataclass(frozen=True)
class _Scale:
    """Colour scale of numbers: from the lowest to the highest, or from 0 in both directions."""

    low: float
    high: float
    digits: int

    @classmethod
    def of(cls, values: Values) -> _Scale:
        numbers = [v for row in values for v in row if v is not None] or [0.0]
        low, high = min(numbers), max(numbers)
        digits = digits_of(max(abs(low), abs(high)))
        if low < 0:
            limit = max(abs(low), abs(high))
            return cls(-limit, limit, digits)
        return cls(0.0 if low < high / 2 else low, high, digits)

    @property
    def signed(self) -> bool:
        return self.low < 0

    def colour(self, value: float) -> str:
        if self.signed:
            name, share = ("c0" if value > 0 else "c1"), abs(value) / self.high
        else:
            span = self.high - self.low
            name, share = "c0", (value - self.low) / span if span else 0.5
        return f"fill:var(--{name});fill-opacity:{_FAINT + (_STRONG - _FAINT) * share:.3f}"

    def written(self, value: float, digits: int | None = None) -> str:
        return formatted(value, self.digits if digits is None else digits, signed=self.signed)


@dataclass(frozen=True)
class _Grid:
    """Layout of the cells: sizes of rows and columns, and the space around them."""

    rows: Sequence[str]
    columns: Sequence[str]
    left: float = field(init=False)
    top: float = field(init=False)
    width: float = field(init=False)
    height: float = field(init=False)
    slanted: bool = field(init=False)

    def __post_init__(self) -> None:
        left = _measure_names(self.rows) + 12
        names = _measure_names(self.columns)
        width = min(_WIDEST, (WIDTH - left - 8) / len(self.columns))
        slanted = names > width - 4
        if slanted:
            width = min(width, (WIDTH - left - 0.71 * names) / len(self.columns))
        flat = max(_FLATTEST, min(_TALLEST, _HEIGHT / len(self.rows)))
        # Cells of a square map are square as long as rows do not get too flat.
        height = max(min(flat, max(_FLATTEST, width)), LINE * count_lines(self.rows) + 4)
        measures = {
            "left": left,
            "top": 0.71 * names + 20 if slanted else 20.0,
            "width": width,
            "height": height,
            "slanted": slanted,
        }
        for name, value in measures.items():
            object.__setattr__(self, name, value)

    @property
    def bottom(self) -> float:
        return self.top + self.height * len(self.rows)

    def at(self, row: int, column: int) -> tuple[float, float]:
        return self.left + column * self.width, self.top + row * self.height


def heat_map(rows: Sequence[str], columns: Sequence[str], values: Values) -> Markup:
    """Return the drawing, `WIDTH` units wide; numbers are omitted if cells are too small for them.

    If there are numbers below 0, they are blue and numbers above 0 orange; else the scale goes from lowest to
    highest.
    """
    scale, grid = _Scale.of(values), _Grid(rows, columns)
    digits = _choose_digits(values, scale, grid)
    cells = [
        _draw_cell(grid, (i, j), value, scale, digits)
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    box = f"0 0 {WIDTH} {grid.bottom + 62:.0f}"
    parts = [
        tag("g", cells),
        _draw_row_names(grid),
        _draw_column_names(grid),
        _draw_legend(grid, scale),
    ]
    label = _describe_map(rows, columns, values, scale)
    return tag("svg", *parts, viewBox=box, class_="heat", role="img", aria_label=label)


def formatted(value: float, digits: int, *, signed: bool = False) -> str:
    """Return a number with `digits` decimals and a true minus sign, and with a plus sign if `signed`."""
    is_decimal = digits <= 5 and abs(value) < 1e6
    digits_text = f"{value:+,.{digits}f}" if is_decimal else f"{value:+.1e}"
    if not digits_text.strip("+-0.,e"):
        return "0"
    digits_text = digits_text if signed else digits_text.removeprefix("+")
    return digits_text.replace("-", "\N{MINUS SIGN}")


def digits_of(largest: float) -> int:
    """Return the number of decimals that show three significant digits of the largest number."""
    return max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0


def _choose_digits(values: Values, scale: _Scale, grid: _Grid) -> int | None:
    """Return the number of decimals that fits the cells: the usual or one fewer; None if neither."""
    numbers = [v for row in values for v in row if v is not None]
    for digits in (scale.digits, max(0, scale.digits - 1)):
        max_letters = max((len(scale.written(v, digits)) for v in numbers), default=0)
        if max_letters * _DIGIT_WIDTH + 4 <= grid.width:
            return digits
    return None


def _draw_cell(
    grid: _Grid, cell: tuple[int, int], value: float | None, scale: _Scale, digits: int | None
) -> Markup:
    row, column = cell
    x, y = grid.at(row, column)
    gap = 1.0 if grid.width >= 8 else 0.0
    box = {
        "x": x + gap,
        "y": y + 1,
        "width": grid.width - 2 * gap,
        "height": grid.height - 2,
        "rx": 2 * gap or None,
    }
    name = f"{grid.rows[row]}, {grid.columns[column]}"
    if value is None:
        # If cells have no gap between them, their outlines would look like a pattern.
        outline = tag("rect", class_="empty", **box) if gap else None
        return tag("g", tag("title", f"{name}: no number"), outline)
    number = None
    if digits is not None:
        middle = x + grid.width / 2, y + grid.height / 2 + 4
        number = text(*middle, scale.written(value, digits), "number", "middle")
    title = tag("title", f"{name}: {scale.written(value, scale.digits + 1)}")
    return tag("g", title, tag("rect", style=scale.colour(value), **box), number)


def _draw_row_names(grid: _Grid) -> Markup:
    places = [grid.at(i, 0)[1] + grid.height / 2 + 4 for i in range(len(grid.rows))]
    return tag(
        "g",
        [
            name_text(grid.left - 8, y, name, anchor="end")
            for name, y in zip(grid.rows, places, strict=True)
        ],
    )


def _draw_column_names(grid: _Grid) -> Markup:
    lines = count_lines(grid.columns)
    needed_width = 18 * lines if grid.slanted else _measure_names(grid.columns) + 4
    name_step = math.ceil(needed_width / grid.width)
    return tag(
        "g",
        [
            _draw_column_name(grid, i, name)
            for i, name in enumerate(grid.columns)
            if i % name_step == 0
        ],
    )


def _draw_column_name(grid: _Grid, column: int, name: str) -> Markup:
    x, y = grid.at(0, column)[0] + grid.width / 2, grid.top - 7
    if not grid.slanted:
        return text(x, y, name, "", "middle")
    return name_text(x, y, name, transform=f"rotate(-45 {x:.1f} {y:.1f})")


def _measure_names(names: Sequence[str]) -> float:
    return min(NAME_WIDTH, max(map(len, names))) * _LETTER_WIDTH


def _draw_legend(grid: _Grid, scale: _Scale) -> Markup:
    """Return the colours from the lowest to the highest number, with numbers below."""
    step, y = 12.0, grid.bottom + 20
    span = scale.high - scale.low
    boxes = [
        tag(
            "rect",
            x=grid.left + i * step,
            y=y,
            width=step,
            height=12,
            style=scale.colour(scale.low + span * (i + 0.5) / _STEPS),
        )
        for i in range(_STEPS)
    ]
    shares = (0.0, 0.5, 1.0) if scale.signed else (0.0, 1.0)
    marks = [
        text(
            grid.left + _STEPS * step * share,
            y + 27,
            scale.written(scale.low + span * share),
            "tick",
            "middle",
        )
        for share in shares
    ]
    return tag("g", boxes, marks, aria_hidden="true")


def _describe_map(
    rows: Sequence[str], columns: Sequence[str], values: Values, scale: _Scale
) -> str:
    """Return a description of the map: its size, highest and lowest number."""
    places = [
        (value, f"{rows[i]}, {columns[j]}")
        for i, row in enumerate(values)
        for j, value in enumerate(row)
        if value is not None
    ]
    size = f"Heat map of {len(rows)} by {len(columns)} numbers"
    if not places:
        return f"{size}, none of which is known"
    ends = [("highest", max(places)), ("lowest", min(places))]
    return f"{size}: " + ", ".join(
        f"{word} {scale.written(value)} ({name})" for word, (value, name) in ends
    )
