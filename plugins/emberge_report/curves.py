"""The numbers that a step logged while it ran, read back from `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Curve", "read_curves", "smooth", "thin"]

POINTS = 400

Curve = Sequence[tuple[float, float]]


def read_curves(path: Path) -> Mapping[str, Curve]:
    """Every logged metric by name, as points (at, value) sorted by `at`.

    A training that was continued repeats some steps; the last word on a step counts. A line that is not a
    whole record, such as the last one of a killed run, is left out. Without `at`, the number of the record
    serves. Values may be NaN or infinite.
    """
    found: dict[str, dict[float, float]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        record = _record(line)
        if record is None:
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


def smooth(curve: Curve, share: float = 1 / 3) -> Curve:
    """A line through noisy numbers: at each point a straight line fitted to its neighbours (Cleveland, 1979).

    `share` of the curve, at least nine points, counts as neighbours, the nearer ones more; at the ends as
    many of them lie on one side. Numbers that are not finite are left out, long curves are thinned first.
    """
    points = thin([(a, b) for a, b in curve if math.isfinite(b)])
    near = max(9, round(len(points) * share))
    last = max(0, len(points) - near)
    return [
        (at, _fitted(points[start : start + near], at))
        for i, (at, _) in enumerate(points)
        for start in [min(max(0, i - near // 2), last)]
    ]


def _fitted(near: Curve, at: float) -> float:
    """The weighted least-squares line through neighbours, at `at`; weights are tricube."""
    reach = 1.001 * max(abs(a - at) for a, _ in near) or 1.0
    weights = [(1 - (abs(a - at) / reach) ** 3) ** 3 for a, _ in near]
    total = sum(weights)
    x = sum(w * a for w, (a, _) in zip(weights, near, strict=True)) / total
    y = sum(w * b for w, (_, b) in zip(weights, near, strict=True)) / total
    spread = sum(w * (a - x) ** 2 for w, (a, _) in zip(weights, near, strict=True))
    if spread == 0:
        return y
    slope = sum(w * (a - x) * (b - y) for w, (a, b) in zip(weights, near, strict=True)) / spread
    return y + slope * (at - x)


def thin(points: Curve) -> Curve:
    """At most `POINTS` points, each the mean of its neighbours, so that long trainings stay light."""
    if len(points) <= POINTS:
        return points
    cuts = [round(i * len(points) / POINTS) for i in range(POINTS + 1)]
    parts = [points[a:b] for a, b in pairwise(cuts)]
    return [(sum(a for a, _ in p) / len(p), sum(b for _, b in p) / len(p)) for p in parts]
