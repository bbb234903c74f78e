"""The table of a study, as a run shows it at its end."""

from __future__ import annotations

from emberge.wording import prose, table_lines

from emberge_boom.study.study import Interaction, Study, cluster_lines

__all__ = ["FILE", "table_of"]

FILE = "interactions.md"
_CUTS = 6
_PAIRS = 3


def table_of(study: Study) -> str:
    """Return Markdown of the pairs that harm and help each other most, and the first cuts of the tree."""
    conflicts = study.conflicts
    most = ", ".join(map(_change, conflicts[:_PAIRS]))
    least = ", ".join(map(_change, conflicts[: -_PAIRS - 1 : -1]))
    rows = [
        [f"{threshold:.4g}", str(len(clusters)), "; ".join(cluster_lines(clusters))]
        for threshold, clusters in study.cuts()[:_CUTS]
    ]
    return "\n".join(
        [
            f"Loss of {len(conflicts)} pairs when trained together, {study.rows:,} rows of each dataset:",
            f"most harm {most}; most help {least}.",
            "",
            *table_lines(["threshold from", "clusters", "which"], rows, "rrl"),
            "",
        ]
    )


def _change(one: Interaction) -> str:
    return f"{prose(' + '.join(one.pair))} {100 * one.change:+.1f} %"
