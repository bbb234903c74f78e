"""The figures of a study in a report: a heat map of all pairs, and a table of the ways to cut the tree."""

from __future__ import annotations

from typing import Any

from emberge_boom.study.study import Study, cluster_lines


def figures_of(study: Study) -> list[dict[str, Any]]:
    """Return a heat map, with datasets in the order of the tree, and a table, as values for a report."""
    from scipy.cluster import hierarchy

    order = [int(leaf) for leaf in hierarchy.leaves_list(study.tree)]
    return [
        {
            "title": "How training together changes the loss",
            "heat_map": _make_heat_map(study, [study.names[leaf] for leaf in order]),
            "caption": f"Each dataset alone and each pair, {study.rows:,} rows of each. Numbers are "
            "LC \N{MINUS SIGN} LA, the mean loss together minus the mean of both alone: below 0 (blue) "
            "training together helps, above 0 (orange) it harms. A joint training takes the steps of both, "
            "which by itself can lower losses. These are losses of training, one seed, and no scores.",
            "table": _make_pair_table(study),
        },
        {
            "title": "Clusters",
            "caption": "A cut of the tree at a distance leaves the clusters that unite below it. They are "
            "numbered by their rows, most first; the sampler cluster takes a threshold and a number.",
            "table": {
                "title": "Every way to cut the tree",
                "head": ["Threshold from", "Clusters", "Which"],
                "rows": _make_cut_rows(study),
            },
        },
    ]


def _make_cut_rows(study: Study) -> list[list[str]]:
    """Return [lowest threshold, number of clusters, clusters] for each way to cut the tree."""
    return [
        [f"{threshold:.4g}", str(len(clusters)), "; ".join(cluster_lines(clusters))]
        for threshold, clusters in study.cuts()
    ]


def _make_heat_map(study: Study, names: list[str]) -> dict[str, Any]:
    deltas = {frozenset(one.pair): one.delta for one in study.interactions}
    values = [[deltas.get(frozenset({row, column})) for column in names] for row in names]
    return {"rows": names, "columns": names, "values": values}


def _make_pair_table(study: Study) -> dict[str, Any]:
    rows = [
        [
            " + ".join(one.pair),
            f"{one.joint:.4f}",
            f"{one.apart:.4f}",
            f"{one.delta:+.4f}".replace("-", "\N{MINUS SIGN}"),
            f"{one.distance:.4f}",
        ]
        for one in study.conflicts
    ]
    rows += [[f"{name} alone", "–", f"{study.singles[name]:.4f}", "–", "–"] for name in study.names]
    return {
        "title": "All pairs, most harm first, and each dataset alone",
        "head": ["Pair", "Loss together", "Loss apart", "Difference", "Distance"],
        "rows": rows,
    }
