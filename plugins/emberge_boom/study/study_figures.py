"""The figures of a study in a report: a heat map and a tree, each with a table."""

from __future__ import annotations

from typing import Any

from emberge_boom.study.study import Study, cluster_lines
from emberge_boom.study.tree import leaves


def figures_of(study: Study) -> list[dict[str, Any]]:
    """Return the heat map and the tree as plain values for a report."""
    return [
        {
            "title": "How training together changes the loss",
            "heat_map": _make_heat_map(study),
            "caption": _write_caption(study),
            "table": _make_pair_table(study),
        },
        {
            "title": "Clusters",
            "tree": _make_tree(study),
            "caption": "A cut at a distance leaves the clusters that unite left of it. They are numbered by "
            "their rows, most first; the sampler cluster takes a threshold and a number.",
            "table": _make_cut_table(study),
        },
    ]


def _make_heat_map(study: Study) -> dict[str, Any]:
    """Return the heat map: all pairs' differences, or changes in percent, in the tree's order."""
    by_ratio = study.ranking == "ratio"
    order, changes = leaves(study.tree), study.matrix("change" if by_ratio else "delta")
    names = [study.names[leaf] for leaf in order]
    values = [
        [_convert_to_percent(changes[i][j]) if by_ratio else changes[i][j] for j in order]
        for i in order
    ]
    return {"rows": names, "columns": names, "values": values}


def _convert_to_percent(change: float | None) -> float | None:
    return None if change is None else 100 * change


def _write_caption(study: Study) -> str:
    steps = {
        "paper": "mean losses over all steps",
        "matched": "mean losses over as many steps of each dataset, together and alone",
    }
    quantity = (
        "the change of the loss in percent"
        if study.ranking == "ratio"
        else "LC \N{MINUS SIGN} LA, the loss together minus the mean of both alone"
    )
    units = ", in units of each dataset's own alone" if study.scale == "own" else ""
    return (
        f"Each dataset alone and each pair, {study.rows:,} rows of each; {steps[study.loss_protocol]}"
        f"{units}. Numbers are {quantity}: below 0 (blue) training together helps, "
        "above 0 (orange) it harms. A joint training takes the steps of both, which by itself can lower "
        "losses. These are losses of training, one seed, and no scores."
    )


def _make_pair_table(study: Study) -> dict[str, Any]:
    rows = [
        [
            " + ".join(interaction.pair),
            f"{interaction.joint:.4f}",
            f"{interaction.apart:.4f}",
            f"{interaction.delta:+.4f}".replace("-", "\N{MINUS SIGN}"),
            f"{100 * interaction.change:+.2f} %".replace("-", "\N{MINUS SIGN}"),
            f"{interaction.distance:.4f}",
        ]
        for interaction in study.conflicts
    ]
    rows += [
        [f"{name} alone", "–", f"{study.singles[name]:.4f}", "–", "–", "–"] for name in study.names
    ]
    head = ["Pair", "Loss together", "Loss apart", "Difference", "Change", "Distance"]
    return {
        "title": "All pairs, most harm first, and each dataset alone",
        "head": head,
        "rows": rows,
    }


def _make_tree(study: Study) -> dict[str, Any]:
    """Return the tree for the report: datasets in order, and unions by their numbers in that order."""
    order = leaves(study.tree)
    number_of = {leaf: number for number, leaf in enumerate(order)}
    heights = ", ".join(f"{height:.3g}" for height in study.heights)
    return {
        "names": [study.names[leaf] for leaf in order],
        "unions": [
            [number_of.get(first, first), number_of.get(second, second), height]
            for first, second, height, _ in study.tree
        ],
        "x": f"distance ({study.distance}, {study.linkage} linkage)",
        "label": f"Tree of {len(order)} datasets, whose clusters unite at the distances {heights}",
    }


def _make_cut_table(study: Study) -> dict[str, Any]:
    rows = [
        [f"{threshold:.4g}", str(len(clusters)), "; ".join(cluster_lines(clusters))]
        for threshold, clusters in study.cuts()
    ]
    head = ["Threshold from", "Clusters", "Which"]
    return {"title": "Every way to cut the tree", "head": head, "rows": rows}
