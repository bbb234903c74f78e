"""Numbers and values of results as text, for pages and cards."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

MINUS = "\N{MINUS SIGN}"


def format_points(share: float | None, less: bool = False) -> str:
    """Return a score × 100 with two decimals; a loss (`less`) is not multiplied."""
    if share is None:
        return "–"
    return (f"{share:.3f}" if less else f"{100 * share:.2f}").replace("-", MINUS)


def format_difference(
    share: float, less: bool = False, interval: tuple[float, float] | None = None
) -> str:
    """Return a difference of scores, ×100, or of losses (`less`), with its sign and perhaps its interval."""
    text = f"{share:+.3f}" if less else f"{100 * share:+.2f}"
    text = text[1:] if float(text) == 0 else text.replace("-", MINUS)
    ends = [format_difference(end, less) for end in interval or ()]
    return f"{text} [{', '.join(ends)}]" if ends else text


def format_duration(seconds: Any) -> str:
    """Return a duration as text, such as `2 h 05 min`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds_left:02} s"


def format_value(value: Any) -> str:
    """Return a value of an artifact as one line of YAML."""
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


def format_short(value: float) -> str:
    """Return a number with at most four decimals."""
    return f"{value:.4f}".rstrip("0").rstrip(".") or "0"


def format_number(value: float, digits: int, *, with_sign: bool = False) -> str:
    """Return a number with `digits` decimals and a true minus sign, and a plus sign `with_sign`."""
    is_decimal = digits <= 5 and abs(value) < 1e6
    text = f"{value:+,.{digits}f}" if is_decimal else f"{value:+.1e}"
    if not text.strip("+-0.,e"):
        return "0"
    return (text if with_sign else text.removeprefix("+")).replace("-", MINUS)


def count_digits(numbers: Sequence[float]) -> int:
    """Return the number of decimals that show three significant digits of the largest number."""
    largest = max(map(abs, numbers), default=0.0)
    return max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
