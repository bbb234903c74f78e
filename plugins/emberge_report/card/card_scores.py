"""Scores of a model in its card: a table, and results in the hub's format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from emberge.documents import BulletList, Section, TextTable
from emberge.evaluating import DOMAINS, MEANS, Comparison, Scores, Task
from emberge.wording import Markdown, bold, prose

from emberge_report.conclusions import WHERE, loss_in_words
from emberge_report.page.tables import points, signed

if TYPE_CHECKING:
    from huggingface_hub.repocard_data import EvalResult


def results_of(model: str, scores: Scores) -> Iterator[EvalResult]:
    """Yield one result for each task: scores × 100 as on leaderboards, losses unchanged."""
    from huggingface_hub.repocard_data import EvalResult

    for task in scores.tasks:
        value, size = scores.value(model, task.name), scores.sizes.get(model)
        if value is None:
            continue
        name = task.name if size is None else f"{task.name}@{size}"
        yield EvalResult(
            task_type=_make_slug(task.kind) or "feature-extraction",
            dataset_type=_make_slug(name),
            dataset_name=name,
            metric_type=task.metric or "score",
            metric_value=round(scores.scale * value, 3),
        )


def _make_slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _describe_size(model: str, scores: Scores) -> str:
    size = scores.sizes.get(model)
    return "" if size is None else f" of embeddings cut to {size} numbers"


def score_section(model: str, scores: Scores) -> Section:
    """Return a table of the model's scores and the reference model's, and the requirements on the model."""
    reference = scores.reference
    compared = reference if reference != model else None
    head = ["Task", "Metric", model, "95 % interval"]
    head += [compared, "Difference"] if compared else []
    rows = [_build_score_row(model, scores, on, compared) for on in scores.columns()]
    title = f"Scores{_describe_size(model, scores)}"
    kind = "Losses, of which less is better." if scores.less else "Scores ×100."
    explanation = [_EXPLAINED] if compared else []
    notes = [Markdown(f"{prose(t.name)}: {prose(t.note)}") for t in scores.tasks if t.note]
    note_list = [BulletList(notes)] if notes else []
    return Section(
        title,
        [kind, TextTable(head, rows), *explanation, *note_list, *_list_requirements(model, scores)],
    )


def _list_requirements(model: str, scores: Scores) -> list[str | BulletList]:
    """Return the evaluation's requirements on the model and whether they are met; empty without any."""
    verdicts = scores.requirements_on(model)
    lines = [
        Markdown(f"{'met' if verdict.met else bold('NOT MET')}: {prose(verdict.text)}")
        for verdict in verdicts
    ]
    return ["Required of the model:", BulletList(lines)] if lines else []


def forgetting_sentence(model: str, scores: Scores) -> str:
    """Return a sentence on the model's forgetting of its base; "" if it is unknown."""
    forgotten = scores.forgotten(model)
    if forgotten is None:
        return ""
    of = next(comparison for comparison in scores.forgetting if comparison.reference == model)
    group_text = f"on tasks {WHERE[of.on]}, against {prose(of.model)}"
    at = _describe_size(model, scores)
    return Markdown(f"Forgetting{at}, {group_text}: it {loss_in_words(forgotten, scores.less)}.")


_EXPLAINED = (
    "Intervals are bootstraps over test examples at 95 %, those of differences paired; they cover nothing "
    "of how another training run would come out."
)


def _build_score_row(model: str, scores: Scores, on: str, compared: str | None) -> list[str]:
    task = scores.task(on)
    interval = scores.interval(model, on)
    cells = [
        _name_task(task) if task else Markdown(f"*{prose(MEANS.get(on, on))}*"),
        task.metric if task else "",
        bold(points(scores.value(model, on), scores.less)),
        " – ".join(points(end, scores.less) for end in interval) if interval else "",
    ]
    if compared:
        difference = scores.difference(model, on)
        cells += [points(scores.value(compared, on), scores.less), _show_difference(difference)]
    return cells


def _name_task(task: Task) -> str:
    domain = DOMAINS.get(task.domain or "", "").lower()
    return f"{task.name} ({domain})" if domain else task.name


def _show_difference(difference: Comparison | None) -> str:
    if difference is None:
        return "–"
    if difference.interval is None:
        return signed(difference.difference, difference.less)
    low, high = difference.interval
    less = difference.less
    interval_text = f"[{signed(low, less)}, {signed(high, less)}]"
    return Markdown(
        f"{signed(difference.difference, less)} {interval_text}, {prose(difference.verdict)}"
    )
