"""Front of weightings: what is gained in the data against what is lost elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emberge_weights.search.candidates import EQUAL
from emberge_weights.search.search import Search

Array = NDArray[np.float64]
# Candidates that are drawn, and rows of the front that are listed.
DRAWN = 300
ROWS = 12


@dataclass(frozen=True, eq=False)
class Front:
    """Gains of all candidates over a `reference`, in the data and elsewhere, and the places on the front."""

    reference: str
    gains: Array
    elsewhere: Array
    places: Sequence[int]
    chosen: int
    weights: Array
    base: bool

    def plain(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return some places of the front, spread evenly, with their weights by name."""
        return [
            {
                "gain": float(self.gains[place]),
                "elsewhere": float(self.elsewhere[place]),
                "weights": dict(zip(names, self.weights[place].tolist(), strict=True)),
                "over": self.reference,
            }
            for place in _spread(self.places, ROWS)
        ]

    def figures(self) -> list[dict[str, Any]]:
        """Return the figure of a report."""
        named = {"equal weights": EQUAL, "chosen": self.chosen}
        if self.base:
            named["base"] = self.weights.shape[1]  # after equal weights every member alone
        series: dict[str, list[Any]] = {
            "candidates": [self._point(place) for place in range(min(DRAWN, len(self.gains)))],
            "front": [self._point(place) for place in self.places],
            **{name: [[*self._point(place), name]] for name, place in named.items()},
        }
        return [
            {
                "title": "What weights gain, and lose elsewhere",
                "points": {
                    "x": f"gain over {self.reference} in the data (points)",
                    "y": "gain elsewhere (points)",
                    "series": series,
                },
                "caption": "Scores foretold from the members' embeddings. On the front no weighting is "
                "better in both; below 0 something is lost that the reference can do.",
                "table": {
                    "title": "Weightings on the front",
                    "head": ["Gain in the data", "Gain elsewhere"],
                    "rows": [
                        [f"{x:+.2f}", f"{y:+.2f}"]
                        for x, y in (self._point(place) for place in _spread(self.places, ROWS))
                    ],
                },
            }
        ]

    def _point(self, place: int) -> list[float]:
        return [
            round(100 * float(self.gains[place]), 3),
            round(100 * float(self.elsewhere[place]), 3),
        ]


def front_of(found: Search, chosen: int, base: bool) -> Front | None:
    """Return the front over all candidates, from least to most lost; None without sets elsewhere."""
    elsewhere, means = found.means_elsewhere, found.means
    if elsewhere is None:
        return None
    zero = found.weights.shape[1] if base else EQUAL
    places: list[int] = []
    for place in np.lexsort((-means, -elsewhere)).tolist():
        if not places or means[place] > means[places[-1]]:
            places.append(place)
    return Front(
        "the base" if base else "equal weights",
        means - means[zero],
        elsewhere - elsewhere[zero],
        places,
        chosen,
        found.weights,
        base,
    )


def _spread(places: Sequence[int], count: int) -> list[int]:
    if len(places) <= count:
        return list(places)
    return [places[round(i * (len(places) - 1) / (count - 1))] for i in range(count)]
