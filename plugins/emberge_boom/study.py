"""The study of interactions, its file `interactions.json`, which samplers read, and its figures."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.contracts import Figure, FigureTable, HeatMap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STUDY_FILE = "interactions.json"
Pair = tuple[str, str]


@dataclass(frozen=True)
class DatasetPair:
    """Two datasets, their loss trained jointly (LC) and the mean of their losses alone (LA)."""

    names: Pair
    joint: float
    alone: float

    @property
    def delta(self) -> float:
        """LC - LA: below 0 if training together lowers the loss."""
        return self.joint - self.alone

    @property
    def distance(self) -> float:
        """Distance for clustering: 1 - LC / LA if the datasets help one another, LC / LA otherwise."""
        ratio = self.joint / self.alone
        return 1 - ratio if self.joint < self.alone else ratio


@dataclass(frozen=True)
class Study:
    """The losses of datasets alone and in pairs, and the tree of their distances.

    `names` are in alphabetical order. `sizes` has the number of rows of each dataset; the trainings read
    `rows` of them. `alone` and `joint` are mean losses over all steps of a training, of each dataset and of
    each pair of names.

    Raises:
        DataError: if the mean loss of a pair alone is not above 0, so that there is no distance.
    """

    names: tuple[str, ...]
    tasks: Mapping[str, str]
    sizes: Mapping[str, int]
    rows: int
    alone: Mapping[str, float]
    joint: Mapping[Pair, float]

    def __post_init__(self) -> None:
        for pair in self.dataset_pairs:
            if pair.alone <= 0:
                raise DataError(
                    f"the mean loss of {' and '.join(pair.names)} alone is {pair.alone:.3g}; "
                    "distances are relative to it and need losses above 0"
                )

    @functools.cached_property
    def dataset_pairs(self) -> tuple[DatasetPair, ...]:
        """All pairs in alphabetical order."""
        return tuple(
            DatasetPair((a, b), self.joint[a, b], (self.alone[a] + self.alone[b]) / 2)
            for a, b in combinations(self.names, 2)
        )

    @property
    def conflicts(self) -> tuple[DatasetPair, ...]:
        """All pairs, the largest LC - LA first; equal pairs are in alphabetical order."""
        return tuple(sorted(self.dataset_pairs, key=lambda i: (-i.delta, i.names)))

    @functools.cached_property
    def tree(self) -> NDArray[np.float64]:
        """The linkage matrix of scipy: [first, second, height, members] of each union of clusters."""
        from scipy.cluster import hierarchy

        distances = [pair.distance for pair in self.dataset_pairs]
        unions: NDArray[np.float64] = hierarchy.linkage(distances, method="average")
        return unions

    @property
    def heights(self) -> list[float]:
        """The distances at which clusters are united, lowest first."""
        return [float(height) for height in self.tree[:, 2]]

    def find_clusters(
        self, *, distance: float | None = None, count: int | None = None
    ) -> tuple[tuple[str, ...], ...]:
        """Return the clusters of a cut at a distance, or `count` clusters.

        Clusters with more data come first, equally large ones in alphabetical order. Ties in the tree can
        leave fewer than `count`.
        """
        from scipy.cluster import hierarchy

        criterion, cut = ("maxclust", count) if distance is None else ("distance", distance)
        members: dict[int, list[str]] = {}
        labels = hierarchy.fcluster(self.tree, cut, criterion=criterion)
        for name, label in zip(self.names, labels, strict=True):
            members.setdefault(int(label), []).append(name)
        clusters = map(tuple, members.values())
        return tuple(
            sorted(clusters, key=lambda names: (-sum(self.sizes[n] for n in names), names))
        )

    def list_cuts(self) -> list[tuple[float, tuple[tuple[str, ...], ...]]]:
        """Return (lowest distance, clusters) for every possible number of clusters, ascending from one."""
        levels = sorted({0.0, *self.heights}, reverse=True)
        return [(level, self.find_clusters(distance=level)) for level in levels]


def list_cluster_lines(clusters: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each cluster: its number, counted from 1, and its datasets."""
    return [f"{number}: {', '.join(names)}" for number, names in enumerate(clusters, 1)]


def write_study(folder: Path, study: Study) -> None:
    """Write `interactions.json`."""
    content = {
        "names": study.names,
        "tasks": study.tasks,
        "sizes": study.sizes,
        "rows": study.rows,
        "alone": study.alone,
        "pairs": [
            {
                "pair": pair.names,
                "joint": pair.joint,
                "alone": pair.alone,
                "delta": pair.delta,
                "distance": pair.distance,
            }
            for pair in study.conflicts
        ],
        "tree": study.tree.tolist(),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / STUDY_FILE).write_text(text + "\n", encoding="utf-8")


def read_study(location: Path) -> Study:
    """Read a study, given its file or folder.

    Raises:
        DataError: if there is no study.
    """
    path = location / STUDY_FILE if location.is_dir() else location
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Study(
            names=tuple(content["names"]),
            tasks=content["tasks"],
            sizes=content["sizes"],
            rows=content["rows"],
            alone=content["alone"],
            joint={(p["pair"][0], p["pair"][1]): p["joint"] for p in content["pairs"]},
        )
    except OSError as error:
        raise DataError(
            f"{location.name} has no study of interactions ({error.strerror}: {STUDY_FILE}); name a step "
            "`interactions`, or what one left"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path.name} is no study of interactions: {error!r}") from None


def build_study_figures(study: Study) -> tuple[Figure, ...]:
    """Return a heat map, with datasets in the order of the tree, and a table, as figures of a report."""
    from scipy.cluster import hierarchy

    names = [study.names[int(leaf)] for leaf in hierarchy.leaves_list(study.tree)]
    deltas = {frozenset(pair.names): pair.delta for pair in study.dataset_pairs}
    values = [[deltas.get(frozenset({row, column})) for column in names] for row in names]
    return (
        Figure(
            title="How training together changes the loss",
            heat_map=HeatMap(rows=names, columns=names, values=values),
            caption=f"Each dataset alone and each pair, {study.rows:,} rows of each. Numbers are "
            "LC \N{MINUS SIGN} LA, the mean loss together minus the mean of both alone: below 0 (blue) "
            "training together helps, above 0 (orange) it harms. A joint training takes the steps of both, "
            "which by itself can lower losses. These are losses of training, one seed, and no scores.",
            table=_make_pair_table(study),
        ),
        Figure(
            title="Clusters",
            caption="A cut of the tree at a distance leaves the clusters that unite below it. They are "
            "numbered by their rows, most first; the sampler cluster takes a threshold and a number.",
            table=FigureTable(
                title="Every way to cut the tree",
                head=["Threshold from", "Clusters", "Which"],
                rows=[
                    [f"{lowest:.4g}", str(len(cut)), "; ".join(list_cluster_lines(cut))]
                    for lowest, cut in study.list_cuts()
                ],
            ),
        ),
    )


def _make_pair_table(study: Study) -> FigureTable:
    rows = [
        [
            " + ".join(pair.names),
            f"{pair.joint:.4f}",
            f"{pair.alone:.4f}",
            f"{pair.delta:+.4f}".replace("-", "\N{MINUS SIGN}"),
            f"{pair.distance:.4f}",
        ]
        for pair in study.conflicts
    ]
    rows += [[f"{name} alone", "–", f"{study.alone[name]:.4f}", "–", "–"] for name in study.names]
    return FigureTable(
        title="All pairs, most harm first, and each dataset alone",
        head=["Pair", "Loss together", "Loss alone", "Difference", "Distance"],
        rows=rows,
    )
