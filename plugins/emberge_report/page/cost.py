"""Cost of models in trainings on all rows: for pages and cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import MarkerStyle
from emberge_report.page.tables import duration, left, plain, swatch, table

if TYPE_CHECKING:
    from emberge_report.report_data import ModelOfRun, ReportData

Cost = Mapping[str, Any]


def describe_cost(details: Mapping[str, Any]) -> str:
    """Return the cost of the trainings behind a merge in a sentence; empty where rows were not counted."""
    cost = details.get("training_cost")
    if not isinstance(cost, Mapping):
        return ""
    sentence = f"Training its members cost {cost['times']:.3g} × one run on all rows"
    if "rows" in cost:
        sentence += f" ({cost['rows']:,} of {cost['of']:,})"
    expenses = ", ".join(_list_spent(cost))
    return f"{sentence}: {expenses}." if expenses else f"{sentence}."


def _list_spent(cost: Cost) -> Iterator[str]:
    if "examples" in cost:
        yield f"{cost['examples']:,} rows trained on"
    if "seconds" in cost:
        yield f"{duration(cost['seconds'])} of training"
    if "cpu_seconds" in cost:
        yield f"{duration(cost['cpu_seconds'])} of CPU time"


def cost_section(report: ReportData, looks: Mapping[str, MarkerStyle]) -> Markup | None:
    """Return a table of the costs of every merge and of every training that is in no merge."""
    merges = [(model, model.details.get("training_cost")) for model in report.merges]
    counted_costs = [(model, cost) for model, cost in merges if isinstance(cost, Mapping)]
    if not counted_costs:
        return None
    merged_members = {name for _, cost in counted_costs for name in cost.get("members", {})}
    separate_costs = [
        (model, _compute_training_cost(model))
        for model in report.trained
        if model.name not in merged_members
    ]
    shown_costs = [*((model, cost) for model, cost in separate_costs if cost), *counted_costs]
    most_rows = max((cost["of"] for _, cost in shown_costs if "of" in cost), default=0)
    rows = [_draw_row(model, _relate_cost(cost, most_rows), looks) for model, cost in shown_costs]
    head = ["Model", "Cost", "Rows", "Trained on", "Time", "CPU time", left("Made up of")]
    return tag(
        "div",
        tag("h3", "Training cost"),
        tag("p", _WORDS, class_="soft"),
        table(head, rows),
    )


_WORDS = (
    "Cost is the rows of all trainings behind a model by the most rows that any model here had: 1 is one "
    "training on those. Rows trained on count every epoch; what fills no last batch is not trained on."
)


def _compute_training_cost(model: ModelOfRun) -> Cost | None:
    """Return the cost of a training by itself."""
    datasets = model.details.get("datasets")
    if not isinstance(datasets, Mapping) or not datasets:
        return None
    rows, of = (
        sum(int(row_counts[key]) for row_counts in datasets.values()) for key in ("rows", "of")
    )
    if not of:
        return None
    costs = {key: model.details.get(key) for key in ("examples", "seconds", "cpu_seconds")}
    return {"times": rows / of, "rows": rows, "of": of, **costs}


def _relate_cost(cost: Cost, of: int) -> Cost:
    """Return the cost relative to one training on `of` rows; unchanged if its rows were not counted."""
    return {**cost, "times": cost["rows"] / of, "of": of} if of and "rows" in cost else cost


def _draw_row(model: ModelOfRun, cost: Cost, looks: Mapping[str, MarkerStyle]) -> Sequence[Markup]:
    members = cost.get("members", {})
    parts = ", ".join(f"{name} {share:.3g}" for name, share in members.items())
    rows = f"{cost['rows']:,} of {cost['of']:,}" if "rows" in cost else "–"
    return [
        tag("th", swatch(looks[model.name]), model.name, scope="row"),
        tag("td", f"{cost['times']:.3g}"),
        tag("td", rows),
        tag("td", plain(cost.get("examples"))),
        tag("td", duration(cost.get("seconds"))),
        tag("td", duration(cost.get("cpu_seconds"))),
        tag("td", parts or "itself", class_="words"),
    ]
