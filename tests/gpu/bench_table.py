"""Rows of one table: what was tried on the GPU and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Row:
    """One thing that was tried: its part, its name, its outcome, and figures or a reason."""

    part: str
    name: str
    state: State
    note: str = ""


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table whose columns are aligned, the last one as long as it is."""
    head = ("part", "what", "outcome", "figures, or why not")
    cells = [head, *((row.part, row.name, row.state, _one_line(row.note)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    lines = [
        "| " + " | ".join([*(f"{row[c]:<{widths[c]}}" for c in range(3)), row[3]]) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|---|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")
