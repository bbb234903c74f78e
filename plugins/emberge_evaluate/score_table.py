"""The table of an evaluation that a person reads, as Markdown: tasks down, models across, scores × 100."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["table"]

MEANS = {
    "task": "mean over tasks",
    "type": "mean over kinds of task",
    "in": "in domain",
    "out": "out of domain",
}
# Groups of tasks that differences are shown on, by what a comparison calls them.
GROUPS = {"all": "all tasks", "type": "kinds of task", "in": "in domain", "out": "out of domain"}
# Up to so many columns have room for intervals.
FEW = 6

Result = Mapping[str, Any]


def table(result: Result) -> str:
    """The result (`scores.json`): scores, means, differences, costs; by arm first where there are seeds."""
    lines = [*_arms(result), *_models(result)]
    if not result["arms"]:
        lines += _differences(result, "comparisons", "a paired bootstrap")
    return "\n".join([*lines, *_domains(result), *_notes(result)]) + "\n"


def _models(result: Result) -> Iterator[str]:
    models = [model["name"] for model in result["models"]]
    if result["arms"]:
        yield from ("Each model:", "")
    yield from _head(["task", *models])
    for task in result["tasks"]:
        label = f"{task['name']} ({_metric(task)})"
        yield _row(label, [result["scores"][model][task["name"]] for model in models])
    for key, label in MEANS.items():
        values = [result["means"][model][key] for model in models]
        if None not in values and not _says_nothing_new(key, result):
            around = [result["mean_intervals"][model].get(key) for model in models]
            notes = [_interval(*pair) if pair else "" for pair in around]
            yield _row(f"*{label}*", values, notes if len(models) <= FEW else ())
    yield from _cost([model.get("training_cost") for model in result["models"]])


def _arms(result: Result) -> Iterator[str]:
    """Means and spreads over seeds, and differences between arms."""
    arms = result["arms"]
    if not arms:
        return
    yield from ("Mean over seeds ± standard deviation:", "")
    yield from _head(["task", *(f"{a['name']} ({_seeds(a)})" for a in arms)])
    for task in result["tasks"]:
        yield _estimates(task["name"], [arm["scores"][task["name"]] for arm in arms])
    for key, label in MEANS.items():
        if key in arms[0]["means"] and not _says_nothing_new(key, result):
            yield _estimates(f"*{label}*", [arm["means"][key] for arm in arms])
    costs = {model["name"]: model.get("training_cost") for model in result["models"]}
    yield from _cost([costs[arm["models"][0]] for arm in arms])
    words = (
        "a bootstrap of test examples and Student's t over seeds, paired where both have the same"
    )
    yield from _differences(result, "arm_comparisons", words)
    yield ""


def _seeds(arm: Mapping[str, Any]) -> str:
    count = len(arm["models"])
    return "1 model" if count == 1 else f"{count} seeds"


def _estimates(label: str, found: Sequence[Mapping[str, Any]]) -> str:
    spreads = [f"± {100 * one['spread']:.1f}" if one["spread"] is not None else "" for one in found]
    return _row(label, [one["mean"] for one in found], spreads)


def _says_nothing_new(key: str, result: Result) -> bool:
    """A mean over one task or one kind, or over all tasks once more."""
    tasks = result["tasks"]
    if key == "type":
        return len({task["kind"] for task in tasks}) == 1
    if key in ("task", "all"):
        return len(tasks) == 1
    return len([task for task in tasks if task["domain"] == key]) in (1, len(tasks))


def _metric(task: Mapping[str, Any]) -> str:
    domain = f", {task['domain']}" if task["domain"] else ""
    return f"{task['metric']}{domain}"


def _head(names: Sequence[str]) -> list[str]:
    cells = [name.replace("|", "\\|") for name in names]
    rule = ["---", *("---:" for _ in cells[1:])]
    return [f"| {' | '.join(cells)} |", f"| {' | '.join(rule)} |"]


def _row(label: str, values: Sequence[float], notes: Sequence[str] = ()) -> str:
    texts = [f"{100 * value:.1f}" for value in values]
    best = max(texts, key=float)
    told = len(set(texts)) > 1  # where all are equal none is best
    cells = [f"**{text}**" if told and text == best else text for text in texts]
    if notes:
        cells = [" ".join(filter(None, pair)) for pair in zip(cells, notes, strict=True)]
    return f"| {label} | {' | '.join(cells)} |"


def _interval(low: float, high: float, form: Callable[[float], str] = "{:.1f}".format) -> str:
    return f"[{form(100 * low)}, {form(100 * high)}]"


def _cost(costs: Sequence[Mapping[str, Any] | None]) -> Iterator[str]:
    """TC, the training on all rows being 1 (arXiv:2602.05787); a model from outside has none."""
    if any(costs):
        cells = ["–" if cost is None else f"{cost['times']:.3g}" for cost in costs]
        yield f"| *training cost* | {' | '.join(cells)} |"


def _differences(result: Result, key: str, words: str) -> list[str]:
    """How far each model or arm lies from the first, with what chance leaves open."""
    shown = [group for group in GROUPS if group == "all" or not _says_nothing_new(group, result)]
    groups = [c for c in result[key] if c["tasks"] in shown]
    if not groups:
        return []
    labels = dict.fromkeys(c["tasks"] for c in groups)
    lines = [
        "",
        f"Difference from {groups[0]['other']} in points, with {groups[0]['confidence']:.0%} intervals "
        f"of {words}:",
        "",
        *_head(["model", *(GROUPS[label] for label in labels)]),
    ]
    for model in dict.fromkeys(c["model"] for c in groups):
        cells = [_difference(c) for c in groups if c["model"] == model]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def _difference(found: Mapping[str, Any]) -> str:
    text = f"{100 * found['difference']:+.1f}"
    if found["low"] is not None:
        text += " " + _interval(found["low"], found["high"], "{:+.1f}".format)
    if apart := found.get("by_seed"):
        text += f" ({', '.join(f'{100 * value:+.1f}' for value in apart.values())})"
    return text


def _domains(result: Result) -> Iterator[str]:
    """Which tasks count as in domain, as no reader can know."""
    for domain, words in (("in", "In domain"), ("out", "Out of domain")):
        names = [task["name"] for task in result["tasks"] if task["domain"] == domain]
        if names:
            yield ""
            yield f"{words} ({len(names)}): {', '.join(names)}."


def _notes(result: Result) -> list[str]:
    lines = [f"- {task['name']}: {task['note']}" for task in result["tasks"] if task["note"]]
    for requirement in result["requirements"]:
        lines.append(f"- {'met' if requirement['met'] else 'NOT MET'}: {requirement['text']}")
    return ["", *lines] if lines else []
