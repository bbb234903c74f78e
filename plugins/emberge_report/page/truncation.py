"""Section of a page on what an adapter's rank leaves out of each tensor's change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emberge_report.charts.markup import Markup, tag
from emberge_report.page.tables import fold, table


def truncation(name: str, details: Mapping[str, Any]) -> Markup | None:
    """Return a table of the tensors by how much is left out; None where no adapter was made of a merge."""
    adapter = details.get("adapter")
    errors = adapter.get("errors") if isinstance(adapter, Mapping) else None
    if not isinstance(adapter, Mapping) or not errors:
        return None
    ranks = adapter.get("ranks", {})
    worst = sorted(errors.items(), key=lambda item: -item[1])
    if worst[0][1] == 0:
        return tag("p", f"An adapter of rank {_span(ranks)}, which leaves nothing out.")
    rows = [
        [
            tag("th", tag("code", tensor), scope="row"),
            tag("td", str(ranks.get(tensor.removesuffix(".weight"), "–"))),
            tag("td", f"{error:.3g}"),
        ]
        for tensor, error in worst
    ]
    middle = worst[len(worst) // 2][1]
    return tag(
        "div",
        tag(
            "p",
            f"An adapter of rank {_span(ranks)}, which leaves out up to {worst[0][1]:.3g} of a tensor's "
            f"change ({middle:.3g} of the middle one's), in Frobenius norms.",
        ),
        fold(f"{name}: what its rank leaves out", table(["Tensor", "Rank", "Left out"], rows)),
    )


def _span(ranks: Mapping[str, int]) -> str:
    known = sorted({min(ranks.values()), max(ranks.values())}) if ranks else []
    return " to ".join(map(str, known)) or "0"
