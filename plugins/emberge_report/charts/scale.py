"""From numbers to pixels: axes with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Scale", "number", "ticks"]


@dataclass(frozen=True, slots=True)
class Scale:
    """A line of numbers from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a number."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """About `count` round numbers inside."""
        return ticks(self.low, self.high, count)


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`, about `count` of them."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return (low,)
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(i * step, 12) for i in range(first, last + 1))


def number(value: float, among: Sequence[float] = ()) -> str:
    """A number for a tick's label: as many digits as tell it from its neighbours, a true minus sign."""
    gaps = [abs(b - a) for a, b in pairwise(among) if b != a]
    gap = min(gaps, default=abs(value) or 1.0)
    digits = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap < 1 else 0
    if digits > 5 or abs(value) >= 1e6:
        return f"{value:.1e}".replace("-", "\N{MINUS SIGN}")
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
