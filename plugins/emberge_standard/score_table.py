"""Means over tasks and kinds of task, and the table that a person reads.

`Mean(Task)` is the mean over tasks, `Mean(TaskType)` the mean over kinds of task of their means, as in
MTEB (Muennighoff et al., 2023, arXiv:2210.07316).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from emberge import TaskInfo

__all__ = ["means", "select", "table"]

GROUPS = {"all": "all tasks", "in": "in domain", "out": "out of domain"}


def select(tasks: Sequence[TaskInfo], group: str) -> list[TaskInfo]:
    """The tasks of a group: "all", "in" or "out" of domain, or the one of that name."""
    if group == "all":
        return list(tasks)
    if group in ("in", "out"):
        return [task for task in tasks if task.domain == group]
    return [task for task in tasks if task.name == group]


def means(tasks: Sequence[TaskInfo], scores: Mapping[str, float]) -> dict[str, float | None]:
    """A model's means: over tasks, over kinds of task, in domain, out of domain; None over no task."""
    by_kind: dict[str, list[float]] = {}
    for task in tasks:
        by_kind.setdefault(task.kind, []).append(scores[task.name])
    return {
        "task": _mean(scores[task.name] for task in tasks),
        "type": _mean(sum(values) / len(values) for values in by_kind.values()),
        "in": _mean(scores[task.name] for task in select(tasks, "in")),
        "out": _mean(scores[task.name] for task in select(tasks, "out")),
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def table(result: Mapping[str, Any]) -> str:
    """The result (`scores.json`) as Markdown: tasks down, models across, × 100, the best in bold."""
    models = [model["name"] for model in result["models"]]
    lines = _head(["task", *models])
    for task in result["tasks"]:
        label = f"{task['name']} ({_metric(task)})"
        lines.append(_row(label, [result["scores"][model][task["name"]] for model in models]))
    for key, label in (
        ("task", "mean over tasks"),
        ("type", "mean over kinds of task"),
        ("in", "in domain"),
        ("out", "out of domain"),
    ):
        values = [result["means"][model][key] for model in models]
        if None not in values and not _says_nothing_new(key, result):
            lines.append(_row(f"*{label}*", values))
    return "\n".join(["\n".join(lines), *_differences(result), *_notes(result)]) + "\n"


def _says_nothing_new(key: str, result: Mapping[str, Any]) -> bool:
    """A mean over one task or one kind, or over all tasks once more."""
    tasks = result["tasks"]
    if key == "type":
        return len({task["kind"] for task in tasks}) == 1
    if key == "task":
        return len(tasks) == 1
    return len([task for task in tasks if task["domain"] == key]) in (1, len(tasks))


def _metric(task: Mapping[str, Any]) -> str:
    domain = f", {task['domain']}" if task["domain"] else ""
    return f"{task['metric']}{domain}"


def _head(names: Sequence[str]) -> list[str]:
    cells = [name.replace("|", "\\|") for name in names]
    rule = ["---", *("---:" for _ in cells[1:])]
    return [f"| {' | '.join(cells)} |", f"| {' | '.join(rule)} |"]


def _row(label: str, values: Sequence[float]) -> str:
    texts = [f"{100 * value:.1f}" for value in values]
    best = max(texts, key=float)
    told = len(set(texts)) > 1  # where all are equal none is best
    cells = [f"**{text}**" if told and text == best else text for text in texts]
    return f"| {label} | {' | '.join(cells)} |"


def _differences(result: Mapping[str, Any]) -> list[str]:
    """How far each model lies from the first, with what chance leaves open."""
    shown = ["all", *(key for key in ("in", "out") if not _says_nothing_new(key, result))]
    groups = [c for c in result["comparisons"] if c["tasks"] in shown]
    if not groups:
        return []
    lines = [
        "",
        f"Difference from {groups[0]['other']} in points, with {groups[0]['confidence']:.0%} intervals "
        "of a paired bootstrap:",
        "",
        *_head(["model", *(GROUPS[g] for g in dict.fromkeys(c["tasks"] for c in groups))]),
    ]
    for model in dict.fromkeys(c["model"] for c in groups):
        cells = [
            f"{100 * c['difference']:+.1f} [{100 * c['low']:+.1f}, {100 * c['high']:+.1f}]"
            for c in groups
            if c["model"] == model
        ]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def _notes(result: Mapping[str, Any]) -> list[str]:
    lines = [f"- {task['name']}: {task['note']}" for task in result["tasks"] if task["note"]]
    for requirement in result["requirements"]:
        lines.append(f"- {'met' if requirement['met'] else 'NOT MET'}: {requirement['text']}")
    return ["", *lines] if lines else []
