"""Numbers and values of results as text, for pages and cards, and the cells of heat maps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from emberge.contracts import HeatMap

MINUS = "\N{MINUS SIGN}"


def format_points(share: float | None, less_is_better: bool = False) -> str:
    """Return a score × 100 with two decimals; a loss (`less_is_better`) is not multiplied."""
    if share is None:
        return "–"
    return (f"{share:.3f}" if less_is_better else f"{100 * share:.2f}").replace("-", MINUS)


def format_difference(
    share: float, less_is_better: bool = False, interval: tuple[float, float] | None = None
) -> str:
    """Return a difference of scores, ×100, or of losses, with its sign and perhaps its interval."""
    text = f"{share:+.3f}" if less_is_better else f"{100 * share:+.2f}"
    text = text[1:] if float(text) == 0 else text.replace("-", MINUS)
    ends = [format_difference(end, less_is_better) for end in interval or ()]
    return f"{text} [{', '.join(ends)}]" if ends else text


def format_value(value: Any) -> str:
    """Return a value of an artifact as one line for readers."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_format_inside(item)}" for key, item in value.items())
    if isinstance(value, Sequence):
        return ", ".join(_format_inside(item) for item in value)
    return json.dumps(value, default=str)


def _format_inside(value: Any) -> str:
    nested = isinstance(value, Mapping) or (
        isinstance(value, Sequence) and not isinstance(value, str)
    )
    return f"({format_value(value)})" if nested else format_value(value)


def format_number(value: float, digits: int, *, with_sign: bool = False) -> str:
    """Return a number with `digits` decimals and a true minus sign, and a plus sign `with_sign`."""
    is_decimal = digits <= 5 and abs(value) < 1e6
    text = f"{value:+,.{digits}f}" if is_decimal else f"{value:+.1e}"
    if not text.strip("+-0.,e"):
        return "0"
    return (text if with_sign else text.removeprefix("+")).replace("-", MINUS)


def _count_digits(numbers: Sequence[float]) -> int:
    """Return the number of decimals that show three significant digits of the largest number."""
    largest = max(map(abs, numbers), default=0.0)
    return max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0


def build_cells(heat_map: HeatMap) -> list[list[tuple[str, str, float] | None]]:
    """Return (text, class of the colour, its strength in percent) of each number; None without one.

    If there are numbers below 0, they have another colour than those above 0, and the strength is from 0
    in both directions; else it goes from the lowest number to the highest.
    """
    numbers = [v for row in heat_map.values for v in row if v is not None] or [0.0]
    low, high, digits = min(numbers), max(numbers), _count_digits(numbers)
    signed = low < 0
    start = 0.0 if signed or low < high / 2 else low
    span = max(abs(low), abs(high)) - start

    def describe(value: float) -> tuple[str, str, float]:
        share = (abs(value) - start) / span if span else 0.5
        text = format_number(value, digits, with_sign=signed)
        return text, "c1" if value < 0 else "c0", round(5 + 50 * share, 1)

    return [[None if v is None else describe(v) for v in row] for row in heat_map.values]
