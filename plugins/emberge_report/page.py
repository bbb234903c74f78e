"""Pages drawn from templates: one HTML file that loads no other file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from emberge.contracts import FigureTable, ModelOrigin
from emberge.wording import count_noun, format_duration, show_chain
from emberge_evaluate import (
    SINGLE_RUNS,
    build_difference_tables,
    build_table,
    leave_out_parts,
)

from emberge_report import charts, formats, models_view, scores_view
from emberge_report.charts import NEUTRAL_LOOK, Look
from emberge_report.conclusions import write_conclusions, write_verdicts
from emberge_report.report_data import ReportData, ReportedStep

if TYPE_CHECKING:
    from jinja2 import Environment

# More panels of tasks than this are folded away below those of means.
_MOST_PANELS = 12
# Origins of models whose colours are chosen first, as the first colours are the strongest.
_STRONG_ORIGINS: tuple[ModelOrigin, ...] = ("merged", "trained", "chosen")
_NOUNS: Mapping[ModelOrigin, str] = {
    "trained": "training",
    "chosen": "choice",
    "merged": "merge",
    "changed": "changed model",
}
# Details of a model that are shown as a picture or a table already.
_DRAWN_DETAILS = {"training_cost", "weights_by_layer", "last_loss", "seconds"}
# Keys of a report's own provenance that concern the report alone.
_REPORT_KEYS = {"step", "kind", "fingerprint", "plugins", "versions"}
_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d.,]*(e[-+]\d+)?( ?%)?|–")


def draw_page(report: ReportData) -> str:
    """Return the HTML of a report, which is well-formed XML too."""
    headings = dict(_list_sections(report))
    merges = [merge.name for merge in report.select_models("merged")]
    versions = report.provenance.get("versions")
    versions = versions if isinstance(versions, Mapping) else {}
    program = versions.get("emberge")
    page = _open_templates().get_template("report.html")
    html = page.render(
        title=report.title,
        report=report,
        looks=_choose_looks(report),
        headings=headings,
        sections=headings.items(),
        subtitle=_write_subtitle(report),
        sentences=[
            *(s for _, scores in report.scores for s in write_verdicts(scores)),
            *(
                sentence
                for _, scores in leave_out_parts(report.scores)
                for sentence in write_conclusions(scores, merges)
            ),
        ],
        provenance=[
            (key, value)
            for key, value in {**report.provenance, **versions}.items()
            if key not in _REPORT_KEYS
        ],
        program=f"emberge {program}" if isinstance(program, str) else "emberge",
        has_seeds=any(scores.pooled for _, scores in report.scores),
    )
    return charts.drop_refused(html)


@cache
def _open_templates() -> Environment:
    """Return the templates of pages; every text that is no markup is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("emberge_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "MOST_PANELS": _MOST_PANELS,
        "SINGLE_RUNS": SINGLE_RUNS,
        "NEUTRAL": NEUTRAL_LOOK,
        "can_draw": charts.can_draw,
    }
    environment.filters |= {
        "points": formats.format_points,
        "signed": formats.format_difference,
        "duration": lambda seconds: "–" if seconds is None else format_duration(seconds),
        "plain": formats.format_value,
        "chain": show_chain,
        "digits": lambda value: f"{value:.3g}",
        "percent": lambda share: "–" if share is None else formats.format_points(share),
        "word_columns": _find_word_columns,
        "shown_details": _list_shown_details,
        "panels": scores_view.build_panels,
        "about": scores_view.describe_task,
        "fact": scores_view.format_fact,
        "score_table": build_table,
        "difference_tables": lambda scores: [*build_difference_tables(scores)],
        "losses": models_view.draw_losses,
        "layers": models_view.list_layers,
        "distances": models_view.draw_distances,
        "weights": models_view.list_weights,
        "sign": charts.draw_sign,
        "not_finite": models_view.count_losses_not_finite,
        "weights_by_layer": models_view.build_weight_map,
        "cells": formats.build_cells,
    }
    return environment


def _find_word_columns(table: FigureTable) -> Collection[int]:
    """Return the columns of a table, but the first, that have words and not only numbers."""
    return {
        column
        for row in table.rows
        for column, cell in enumerate(row)
        if column and isinstance(cell, str) and not _NUMBER.fullmatch(cell)
    }


def _list_shown_details(model: ReportedStep) -> list[tuple[str, Any]]:
    return [
        ("examples seen" if key == "examples" else key, value)
        for key, value in model.artifact.to_record()["details"].items()
        if key not in _DRAWN_DETAILS and value not in (None, [], {}, "")
    ]


def _choose_looks(report: ReportData) -> dict[str, Look]:
    """Return a look for each model, and for each arm of models."""
    strong = [model for origin in _STRONG_ORIGINS for model in report.select_models(origin)]
    of_models = charts.assign_looks(model.name for model in (*strong, *report.models))
    of_models |= {
        column: look
        for _, scores in report.scores
        for name, look in of_models.items()
        for column in scores.list_columns(name)
    }
    arms = [
        arm
        for _, scores in report.scores
        if scores.pooled
        for arm in scores.pooled.models
        if not of_models.keys().isdisjoint(scores.pooled.list_members(arm))
    ]
    return charts.assign_looks(arms) | of_models


def _list_sections(report: ReportData) -> Iterator[tuple[str, str]]:
    """Yield the id and heading of each section."""
    for i, (name, _) in enumerate(report.scores):
        is_plain = len(report.scores) == 1 or name == "scores"
        yield f"scores-{i}", "Scores" if is_plain else f"Scores: {name}"
    for i, (name, _) in enumerate(report.figures):
        yield f"figures-{i}", f"Figures of {name}"
    sections: Sequence[tuple[str, str, Any]] = (
        ("data", "Data", report.data),
        ("trainings", "Trainings", report.select_models("trained")),
        ("merges", "Merges", report.select_models("merged")),
        ("changed", "Changed models", report.select_models("changed")),
        ("distances", f"Distance from {report.base}", report.models if report.base else ()),
        ("run", "What was run", True),
    )
    yield from ((key, heading) for key, heading, is_shown in sections if is_shown)


def _write_subtitle(report: ReportData) -> str:
    parts = [(len(report.select_models(origin)), noun) for origin, noun in _NOUNS.items()]
    parts.append((len({task.name for _, scores in report.scores for task in scores.tasks}), "task"))
    text = ", ".join(count_noun(count, noun) for count, noun in parts if count)
    return text or "No model was made."
