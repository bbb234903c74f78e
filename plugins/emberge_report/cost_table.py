"""Table of models' sizes, costs and scores, for pages and cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emberge.evaluating import MEANS, Estimate, Scores
from emberge.wording import count_noun

from emberge_report.page.tables import points

Column = Callable[[str], str | None]


def list_costs(scores: Scores) -> tuple[list[str], Mapping[str, list[str]]]:
    """Return the head of a table, and each model's cells after its name.

    Columns without facts are left out.
    """
    models = scores.models_of_recipe
    columns = {
        title: cells
        for title, column in _list_columns(scores).items()
        if any(cells := [column(model) for model in models])
    }
    rows = {
        model: [cells[row] or "–" for cells in columns.values()] for row, model in enumerate(models)
    }
    return [*columns], rows


def _list_columns(scores: Scores) -> dict[str, Column]:
    counts, costs = scores.parameters, scores.encoding_costs

    def find_active(model: str) -> str | None:
        is_sparse = any(count.active != count.total for count in counts.values())
        return f"{counts[model].active:,}" if is_sparse and model in counts else None

    def find_index_bytes(model: str) -> str | None:
        if model not in costs:
            return None
        size = next((scores.sizes[m] for m in scores.members_of(model) if m in scores.sizes), None)
        return f"{costs[model].index_bytes if size is None else 4 * size:,.0f}"

    columns: dict[str, Column] = {
        "Parameters": lambda m: f"{counts[m].total:,}" if m in counts else None,
        "Active": find_active,
        "Active without the word embedding": lambda m: (
            f"{counts[m].computed:,}" if m in counts else None
        ),
        "MB": lambda m: (
            f"{scores.weight_bytes[m] / 1e6:,.1f}" if m in scores.weight_bytes else None
        ),
        "Index bytes a document": find_index_bytes,
        "ms a query": lambda m: _show(costs[m].milliseconds) if m in costs else None,
        "CPU ms": lambda m: _show(costs[m].cpu_milliseconds) if m in costs else None,
        "texts/s": lambda m: _show(costs[m].texts_per_second) if m in costs else None,
    }
    for on in scores.headlines():
        columns |= _list_score_columns(scores, on)
    return columns


def _list_score_columns(scores: Scores, on: str) -> dict[str, Column]:
    title = MEANS.get(on, on)

    def find_share(model: str) -> str | None:
        share = scores.shares.get(model, {}).get(on)
        return None if share is None else _show_share(share)

    return {
        title[0].upper() + title[1:]: lambda m: points(scores.value(m, on), scores.less),
        f"Share of {scores.reference}’s {title}": find_share,
    }


def _show(value: float) -> str:
    """Return a measured number with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _show_share(share: Estimate) -> str:
    if share.interval is None:
        return f"{100 * share.mean:.1f} %"
    low, high = share.interval
    return f"{100 * share.mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def describe_costs(scores: Scores) -> str:
    """Return sentences on how the numbers of the table came about."""
    sentences = [
        "Active are the parameters that one token uses: of a layer’s experts those that its router chooses, "
        "and everything else."
    ]
    cost = next(iter(scores.encoding_costs.values()), None)
    if cost is not None:
        sentences = [
            f"Time is for one query alone, tokenizer included, and texts/s for {cost.texts} documents in "
            f"batches, on {cost.machine} with {count_noun(cost.threads, 'thread')} of torch: medians of "
            f"{cost.rounds} rounds over all models, {cost.queries} queries in each. CPU ms is the CPU time "
            "of all threads for the query. A vector has 4 bytes a number.",
            *sentences,
        ]
    if any(scores.shares.values()):
        share = f"{100 * scores.confidence:g} %"
        sentences.append(
            f"Shares of {scores.reference}’s score have {share} intervals of a paired bootstrap; with fewer "
            "than 100 queries they have none."
        )
    return " ".join(sentences)
