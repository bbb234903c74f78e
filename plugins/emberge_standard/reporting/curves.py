"""The numbers that a step logged while it ran, read back from `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Curve", "read_curves", "smooth"]

Curve = Sequence[tuple[float, float]]


def read_curves(path: Path, step: str | None = None) -> Mapping[str, Curve]:
    """Every logged metric by name, as points (at, value) sorted by `at`.

    A training that was continued repeats some steps; the last word on a step counts. A line that is not a
    whole record, such as the last one of a killed run, is left out, and so are lines of other steps when
    `step` is given. Without `at`, the number of the record serves. Values may be NaN or infinite.
    """
    found: dict[str, dict[float, float]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        record = _record(line)
        if record is None or (step is not None and record.get("step", step) != step):
            continue
        curve = found.setdefault(record["name"], {})
        at = record.get("at")
        curve[float(len(curve) if at is None else at)] = float(record["value"])
    return {name: sorted(curve.items()) for name, curve in found.items()}


def _record(line: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return None
    numbers = [record.get("value"), record.get("at")]
    value, at = (None if isinstance(n, bool) else n for n in numbers)
    fits = isinstance(value, int | float) and isinstance(at, int | float | None)
    return record if fits else None


def smooth(curve: Curve, share: float = 0.08) -> Curve:
    """A centred moving mean over `share` of the curve, so that the line does not lag behind its numbers.

    At the ends the window shrinks and stays centred. Numbers that are not finite are left out.
    """
    points = [(a, b) for a, b in curve if math.isfinite(b)]
    half = max(1, round(len(points) * share / 2))
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    smoothed = []
    for i, (at, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)
        total = sums[i + reach + 1] - sums[i - reach]
        smoothed.append((at, total / (2 * reach + 1)))
    return smoothed
