"""The study of interactions, and its file `interactions.json`, which samplers read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import DataError

from emberge_boom.study.affinity import Distance, LossProtocol, LossScale, Pair, Ranking
from emberge_boom.study.tree import Linkage, Tree, cut_at, cut_into, heights_of, number_clusters

FILE = "interactions.json"
FORMAT = 1


@dataclass(frozen=True)
class Interaction:
    """Two datasets, their losses trained jointly and separately, and their distance."""

    pair: Pair
    joint: float
    apart: float
    distance: float

    @property
    def delta(self) -> float:
        """LC - LA: below 0 if training together lowers the loss."""
        return self.joint - self.apart

    @property
    def change(self) -> float:
        """The share by which training together changes the loss: LC / LA - 1."""
        return self.joint / self.apart - 1


@dataclass(frozen=True)
class Study:
    """The losses of datasets alone and in pairs, and the tree of their distances.

    `names` are in alphabetical order. `sizes` has the number of rows of each dataset; the trainings read
    `rows` of them. `tree` is a linkage matrix of scipy: [first, second, height, members] of each union.
    """

    names: tuple[str, ...]
    tasks: Mapping[str, str]
    sizes: Mapping[str, int]
    rows: int
    singles: Mapping[str, float]
    interactions: tuple[Interaction, ...]
    tree: Tree
    linkage: Linkage = "average"
    distance: Distance = "paper"
    loss_protocol: LossProtocol = "paper"
    scale: LossScale = "loss"
    ranking: Ranking = "difference"

    def __post_init__(self) -> None:
        pair_count = len(self.names) * (len(self.names) - 1) // 2
        if len(self.interactions) != pair_count or len(self.tree) != len(self.names) - 1:
            raise ValueError(f"{len(self.names)} datasets have {pair_count} pairs")

    @property
    def heights(self) -> tuple[float, ...]:
        """The distances at which clusters are united, lowest first."""
        return heights_of(self.tree)

    @property
    def conflicts(self) -> tuple[Interaction, ...]:
        """All pairs, the largest `ranking` first; equal pairs are in alphabetical order."""
        return tuple(sorted(self.interactions, key=lambda one: (-self.strength(one), one.pair)))

    def strength(self, interaction: Interaction) -> float:
        """Return how much joint training raises a pair's loss: LC - LA, or LC / LA - 1 by `ratio`."""
        return interaction.delta if self.ranking == "difference" else interaction.change

    def between(self, a: str, b: str) -> Interaction:
        """Return the interaction of two datasets."""
        return next(
            interaction for interaction in self.interactions if set(interaction.pair) == {a, b}
        )

    def clusters(
        self, *, threshold: float | None = None, count: int | None = None
    ) -> tuple[tuple[str, ...], ...]:
        """Return the clusters of a cut at a distance, or `count` clusters; those with more data first.

        Ties in the tree can leave fewer than `count`.
        """
        if threshold is not None:
            return number_clusters(self.names, self.sizes, cut_at(self.tree, threshold))
        return number_clusters(self.names, self.sizes, cut_into(self.tree, count or 1))

    def cuts(self) -> list[tuple[float, tuple[tuple[str, ...], ...]]]:
        """Return (lowest threshold, clusters) for every possible number of clusters, ascending from one."""
        levels = sorted({0.0, *self.heights}, reverse=True)
        return [(level, self.clusters(threshold=level)) for level in levels]

    def matrix(self, field: str) -> list[list[float | None]]:
        """Return the matrix of one field of all pairs, in the order of `names`; None on the diagonal."""
        number_of = {name: i for i, name in enumerate(self.names)}
        values: list[list[float | None]] = [[None] * len(self.names) for _ in self.names]
        for interaction in self.interactions:
            a, b = (number_of[name] for name in interaction.pair)
            values[a][b] = values[b][a] = float(getattr(interaction, field))
        return values


def cluster_lines(clusters: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each cluster: its number, counted from 1, and its datasets."""
    return [f"{number}: {', '.join(names)}" for number, names in enumerate(clusters, 1)]


def write_study(folder: Path, study: Study) -> Path:
    """Write `interactions.json`."""
    path = folder / FILE
    path.write_text(
        json.dumps(_convert_to_json(study), indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    return path


def _convert_to_json(study: Study) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "names": study.names,
        "tasks": study.tasks,
        "sizes": study.sizes,
        "rows": study.rows,
        "loss_protocol": study.loss_protocol,
        "scale": study.scale,
        "distance": study.distance,
        "linkage": study.linkage,
        "ranking": study.ranking,
        "singles": study.singles,
        "joint": study.matrix("joint"),
        "apart": study.matrix("apart"),
        "delta": study.matrix("delta"),
        "distances": study.matrix("distance"),
        "tree": study.tree,
        "heights": study.heights,
        "pairs": [
            {
                **dataclasses.asdict(interaction),
                "delta": interaction.delta,
                "change": interaction.change,
            }
            for interaction in study.conflicts
        ],
    }


def read_study(location: Path) -> Study:
    """Read a study, given its file or folder.

    Raises:
        DataError: if there is no study.
    """
    path = location / FILE if location.is_dir() else location
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise DataError(f"{path.name}: this version reads studies of format {FORMAT}")
        return _read_from_json(content)
    except OSError as error:
        raise DataError(
            f"{location.name} has no study of interactions ({error.strerror}: {FILE}); name a step "
            "`interactions`, or what one left"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path.name} is no study of interactions: {error!r}") from None


def _read_from_json(content: Mapping[str, Any]) -> Study:
    pairs: Sequence[Mapping[str, Any]] = content["pairs"]
    return Study(
        names=tuple(content["names"]),
        tasks=content["tasks"],
        sizes=content["sizes"],
        rows=content["rows"],
        singles=content["singles"],
        interactions=tuple(
            Interaction(
                (values["pair"][0], values["pair"][1]),
                values["joint"],
                values["apart"],
                values["distance"],
            )
            for values in pairs
        ),
        tree=tuple((int(a), int(b), float(h), int(n)) for a, b, h, n in content["tree"]),
        linkage=content["linkage"],
        distance=content["distance"],
        loss_protocol=content["loss_protocol"],
        scale=content["scale"],
        ranking=content["ranking"],
    )
