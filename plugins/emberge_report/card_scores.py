"""Scores that a card gets when its model is published: a section, and front matter for the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from emberge.wording import Markdown, to_markdown
from emberge_evaluate import (
    TITLE_BY_DOMAIN,
    ScoreCell,
    ScoredTask,
    Scores,
    ScoreTable,
    build_difference_tables,
    build_table,
    leave_out_parts,
)

from emberge_report.card import open_templates
from emberge_report.conclusions import DOMAIN_PHRASES, describe_forgotten
from emberge_report.formats import format_difference, format_points
from emberge_report.markdown import split_card

if TYPE_CHECKING:
    from huggingface_hub.repocard_data import EvalResult

# Section of a card before which its scores are added.
_NEXT_SECTION = "\n## Licence\n"


def add_scores(card: str, evaluations: Sequence[tuple[str, Scores]]) -> str:
    """Return a card with the scores of its model.

    `evaluations` are (name of the model's column, scores) of each evaluation of exactly its weights.
    """
    # The class of whole cards would bring all that the hub is called with.
    from huggingface_hub.repocard_data import ModelCardData

    if not evaluations:
        return card
    front, body = split_card(card)
    # The claims of an evaluation whose scores are those of another are claims on these.
    verdicts = {one: None for name, scores in evaluations for one in scores.list_verdicts(name)}
    whole = leave_out_parts(evaluations)
    results = [result for name, scores in whole for result in _list_results(name, scores)]
    index = ModelCardData(model_name=evaluations[0][0], eval_results=results).to_yaml()
    template = open_templates().get_template("card_scores.md")
    section = template.render(
        scored=whole,
        verdicts=list(verdicts),
        describe_size=_describe_size,
        describe_forgetting=describe_forgetting,
        format_points=format_points,
        show_difference=_show_difference,
        name_task=_name_task,
        build_tables=_build_tables,
    )
    fields = "\n".join(filter(None, (front, index)))
    return f"---\n{fields}\n---\n{insert_section(body, section)}"


def insert_section(card: str, section: str) -> str:
    """Return a card with a section before that of the licence, or at the end."""
    before, heading, after = card.partition(_NEXT_SECTION)
    return f"{before.rstrip()}\n\n{section.strip()}\n{heading}{after}"


def _list_results(name: str, scores: Scores) -> Iterator[EvalResult]:
    """Yield one result for each task: scores × 100 as on leaderboards, losses unchanged."""
    from huggingface_hub.repocard_data import EvalResult

    size = scores.find_column(name).size
    for task in scores.tasks:
        value = scores.find_value(name, task.name)
        if value is None:
            continue
        dataset = task.name if size is None else f"{task.name}@{size}"
        yield EvalResult(
            task_type=_make_slug(task.kind) or "feature-extraction",
            dataset_type=_make_slug(dataset),
            dataset_name=f"{dataset} ({task.note})" if task.note else dataset,
            metric_type=task.metric or "score",
            metric_value=round(value if scores.less_is_better else 100 * value, 3),
        )


def _make_slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _describe_size(name: str, scores: Scores) -> str:
    size = scores.find_column(name).size
    return "" if size is None else f" of embeddings cut to {size} numbers"


def describe_forgetting(name: str, scores: Scores) -> str:
    """Return a sentence on the model's forgetting of its base; "" if it is unknown."""
    forgotten = scores.find_forgotten(name)
    if forgotten is None:
        return ""
    of = next(comparison for comparison in scores.forgetting if comparison.reference == name)
    group_text = f"on tasks {DOMAIN_PHRASES[of.task_or_mean]}, against {to_markdown(of.model)}"
    return Markdown(
        f"Forgetting, {group_text}: it {describe_forgotten(forgotten, scores.less_is_better)}."
    )


def _name_task(task: ScoredTask) -> str:
    domain = TITLE_BY_DOMAIN.get(task.domain or "", "").lower()
    return f"{task.name} ({domain})" if domain else task.name


def _build_tables(scores: Scores) -> tuple[ScoreTable, ScoreTable | None]:
    """Return the table of scores, and that of differences from the first model if there are several."""
    return build_table(scores), next(build_difference_tables(scores), None)


def _show_difference(cell: ScoreCell, less_is_better: bool) -> str:
    if cell.value is None:
        return "–"
    text = format_difference(cell.value, less_is_better, cell.interval)
    return text if cell.interval is None else Markdown(f"{text}, {to_markdown(cell.verdict)}")
