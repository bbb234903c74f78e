"""Learning curves: scores on development data over steps, smoothed for the eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emberge import TaskScore

_OLD = 0.4  # share of the mean so far in the next point, as BidirLM's curves have it


def smoothed(values: Sequence[float], old: float = _OLD) -> list[float]:
    """Return the exponential moving average, in which the mean so far has the share `old`."""
    found: list[float] = []
    for value in values:
        found.append(old * found[-1] + (1 - old) * value if found else value)
    return found


def learning_curves(
    scores: Mapping[str, Mapping[str, TaskScore]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a figure for each task: models' scores on development data over steps, means over seeds.

    A point is the mean of the seeds that got so far. The curves are those of the learning rates chosen.
    """
    found = []
    for name in names:
        mine = {
            model: [one for one in row.values() if one.task.name_without_seed == name]
            for model, row in scores.items()
        }
        figure = _draw_figure(name, {model: several for model, several in mine.items() if several})
        found += [figure] if figure is not None else []
    return found


def _draw_figure(name: str, scores: Mapping[str, Sequence[TaskScore]]) -> dict[str, Any] | None:
    curves = {model: [_smooth_points(one) for one in several] for model, several in scores.items()}
    steps = sorted({step for several in curves.values() for one in several for step in one})
    if len(steps) < 2:
        return None
    series = {
        model: [_mean_at_step(several, step) for step in steps] for model, several in curves.items()
    }
    metric = next(iter(scores.values()))[0].task.metric
    head = ["steps", *series]
    rows = [
        [f"{step:,}", *(_format_score(line[at]) for line in series.values())]
        for at, step in enumerate(steps)
    ]
    return {
        "title": f"Fine-tuning on {name}",
        "caption": (
            f"{metric} on development data at the learning rate chosen, the mean over seeds, each smoothed "
            f"by an exponential moving average ({_OLD:g})."
        ),
        "lines": {
            "x": "step",
            "y": metric,
            "labels": [f"{step}" for step in steps],
            "series": series,
        },
        "table": {"title": f"{metric} × 100 by step", "head": head, "rows": rows},
    }


def _format_score(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _smooth_points(score: TaskScore) -> dict[int, float]:
    """Return the smoothed score by step."""
    curve = score.result["curve"]
    values = smoothed([float(dev) for _, _, dev in curve])
    return {int(step): value for (step, _, _), value in zip(curve, values, strict=True)}


def _mean_at_step(curves: Sequence[Mapping[int, float]], step: int) -> float | None:
    values = [curve[step] for curve in curves if step in curve]
    return sum(values) / len(values) if values else None
