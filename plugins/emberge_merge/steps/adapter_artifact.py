"""Artifacts of steps that make an adapter: the limits of its ranks, and the table of what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from emberge import Workspace
from emberge.wording import table_lines

if TYPE_CHECKING:
    from emberge.merging import AdapterReport


TABLE = "truncation.md"
_SHOWN = 10


def require_truncation(rank: int | None, energy: float | None) -> None:
    """Refuse numbers that keep nothing.

    Raises:
        ValueError: for a rank below 1, or an energy outside (0, 1].
    """
    if rank is not None and rank < 1:
        raise ValueError(f"'rank' is {rank}; it must be at least 1")
    if energy is not None and not 0 < energy <= 1:
        raise ValueError(f"'energy' is {energy}; it is a share, above 0 and at most 1")


def described(report: AdapterReport, base: str, workspace: Workspace) -> dict[str, Any]:
    """Return details for the artifact, and write a table of the tensors of which most is left out."""
    for warning in report.warnings:
        workspace.warn(warning)
    name, worst = report.worst
    workspace.metric("truncation_error_worst", worst)
    details: dict[str, Any] = {
        "base": base,
        "adapter": {
            "ranks": dict(report.ranks),
            "errors": dict(report.errors),
            "worst": {"tensor": name, "error": worst},
            "whole": list(report.whole),
        },
    }
    if report.findings:
        details["weights_by_layer"] = report.findings
    if worst > 0:
        (workspace.folder / TABLE).write_text("\n".join(_table(report)) + "\n", encoding="utf-8")
        details["table"] = TABLE
    return details


def _table(report: AdapterReport) -> Iterator[str]:
    worst = sorted(report.errors.items(), key=lambda item: -item[1])[:_SHOWN]
    of = f" of {len(report.errors)}" if len(report.errors) > len(worst) else ""
    yield f"Left out of each change by its rank (relative error, the worst {len(worst)}{of}):"
    yield ""
    rows = [
        [name, str(report.ranks[name.removesuffix(".weight")]), f"{error:.3g}"]
        for name, error in worst
    ]
    yield from table_lines(["tensor", "rank", "error"], rows)
