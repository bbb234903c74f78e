"""The figures of a study in a report: drawings, each with a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge_boom.study.dendrogram import dendrogram
from emberge_boom.study.heat_map import heat_map
from emberge_boom.study.study import Study, cluster_lines

__all__ = ["figures_of"]

HEAT_MAP, TREE = "heat_map.svg", "tree.svg"


def figures_of(study: Study, folder: Path) -> list[dict[str, Any]]:
    """Draw the figures into `folder` and return them as plain values, as a report takes them."""
    (folder / HEAT_MAP).write_text(heat_map(study), encoding="utf-8")
    (folder / TREE).write_text(dendrogram(study), encoding="utf-8")
    return [
        {
            "title": "How training together changes the loss",
            "file": HEAT_MAP,
            "caption": _how(study),
            "table": _pairs(study),
        },
        {
            "title": "Clusters",
            "file": TREE,
            "caption": "A cut at a distance leaves the clusters that unite left of it. They are numbered by "
            "their rows, most first; the sampler cluster takes a threshold and a number.",
            "table": _cuts(study),
        },
    ]


def _how(study: Study) -> str:
    steps = {
        "paper": "mean losses over all steps",
        "matched": "mean losses over as many steps of each dataset, together and alone",
    }
    units = ", in units of each dataset's own alone" if study.scale == "own" else ""
    return (
        f"Each dataset alone and each pair, {study.rows:,} rows of each; {steps[study.loss_protocol]}"
        f"{units}. Below 0 (blue) training together helps, above 0 (orange) it harms. A joint training "
        "takes the steps of both, which by itself can lower losses. These are losses of training, one seed, "
        "and no scores."
    )


def _pairs(study: Study) -> dict[str, Any]:
    rows = [
        [
            " + ".join(one.pair),
            f"{one.joint:.4f}",
            f"{one.apart:.4f}",
            f"{100 * one.change:+.2f} %".replace("-", "\N{MINUS SIGN}"),
            f"{one.distance:.4f}",
        ]
        for one in study.conflicts
    ]
    head = ["Pair", "Loss together", "Loss apart", "Change", "Distance"]
    return {"title": "All pairs, most harm first", "head": head, "rows": rows}


def _cuts(study: Study) -> dict[str, Any]:
    rows = [
        [f"{threshold:.4g}", str(len(clusters)), "; ".join(cluster_lines(clusters))]
        for threshold, clusters in study.cuts()
    ]
    head = ["Threshold from", "Clusters", "Which"]
    return {"title": "Every way to cut the tree", "head": head, "rows": rows}
