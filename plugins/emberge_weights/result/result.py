"""The result of a search: the file of weights, a table, and the artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from emberge import Artifact, Model, Workspace
from emberge.engine import FoundWeights, write_text

from emberge_weights.layers.layer_search import Layers
from emberge_weights.result.front import Front, front_of
from emberge_weights.result.weights_table import table
from emberge_weights.scores.unit_scores import UnitScores, mean_score, standard_error
from emberge_weights.search.candidates import EQUAL
from emberge_weights.search.choice import HeldOut
from emberge_weights.search.real_merges import Anchors
from emberge_weights.search.search import Search

__all__ = ["Result"]

TABLE = "weights.md"


@dataclass(frozen=True, eq=False)
class Result:
    """Models and what a search has found of them; the base, where there is one, is the last."""

    models: Sequence[Model]
    licences: Sequence[str | None]
    found: Search
    anchors: Anchors | None
    base: bool
    layers: Layers | None = None

    def write(self, workspace: Workspace) -> Artifact:
        """Write the files into the step's folder and return its artifact."""
        facts = self.facts()
        weights = dict(zip(self._fingerprints, self._taken, strict=True))
        layered = self.layers.by_tensor if self.layers is not None and self._layered else ()
        by_tensor = dict(zip(self._fingerprints, layered, strict=False))
        names = {model.fingerprint: model.name for model in self.models}
        FoundWeights(weights=weights, by_tensor=by_tensor, names=names, facts=facts).write(
            workspace.folder
        )
        write_text(workspace.folder / TABLE, table(facts))
        figures = self.front.figures() if self.front is not None else []
        return Artifact(
            kind="file",
            parents=tuple(self._fingerprints),
            details={
                "table": TABLE,
                "weights": {one["name"]: one["weight"] for one in facts["members"]},
                "headroom": facts["headroom"],
                "score": facts["score"],
                **({"figures": figures} if figures else {}),
            },
        )

    @property
    def _fingerprints(self) -> list[str]:
        return [model.fingerprint for model in self.models]

    @cached_property
    def chosen(self) -> int:
        """Place of the candidate to take."""
        return self.anchors.final(self.found) if self.anchors else self.found.choice.place

    @cached_property
    def correction(self) -> float:
        """Mean difference of real and foretold scores over the anchors."""
        if self.anchors is None:
            return 0.0
        foretold = self.found.means[list(self.anchors.places)]
        return float((self.anchors.means - foretold).mean())

    @cached_property
    def front(self) -> Front | None:
        """Candidates that none beats both in the data and elsewhere, None without sets elsewhere."""
        return front_of(self.found, self.chosen, self.base)

    def facts(self) -> dict[str, Any]:
        """Return all that is known, as JSON."""
        means, choice = self.found.means, self.found.choice
        real, difference = self._real()
        return {
            "score": {
                "foretold": float(means[self.chosen] + self.correction),
                "real": real,
                "equal": float(means[EQUAL] + self.correction),
                "over_equal": _plain(difference),
            },
            "headroom": _plain(choice.gain),
            "clear": choice.gain.clear,
            "correction": self.correction,
            "candidates": len(means),
            "members": [self._member(number) for number in range(len(self.models))],
            "sets": [self._set(one) for one in (*self.found.scores, *self.found.elsewhere)],
            "anchors": list(self._anchors()),
            "front": self.front.plain(self._names) if self.front is not None else [],
            **({"layers": self._layer_facts(self.layers)} if self.layers is not None else {}),
        }

    @property
    def _layered(self) -> bool:
        """True for weights by layer that are better than one for all layers."""
        return self.layers is not None and self.layers.gain.clear

    @property
    def _taken(self) -> list[float]:
        """Weights to take, of those by layer their means."""
        if self.layers is not None and self._layered:
            return [float(weight) for weight in self.layers.coefficients.mean(0)]
        return self._weights(self.chosen)

    def _layer_facts(self, layers: Layers) -> dict[str, Any]:
        weights = {
            name: dict(zip(layers.blocks, values, strict=True))
            for name, values in zip(self._names, layers.coefficients.T.tolist(), strict=True)
        }
        return {"gain": _plain(layers.gain), "clear": layers.gain.clear, "weights": weights}

    @property
    def _names(self) -> list[str]:
        return [model.name for model in self.models]

    def _weights(self, place: int) -> list[float]:
        return [float(weight) for weight in self.found.weights[place]]

    def _real(self) -> tuple[float | None, HeldOut]:
        """Return the real score of the choice, and its difference from equal weights, real if both are."""
        scores, pair = self.found.scores, [EQUAL, self.chosen]
        real = None
        if self.anchors is not None:
            row = list(self.anchors.places).index(self.chosen)
            scores, pair = self.anchors.scores, [0, row]
            real = float(self.anchors.means[row])
        return real, _difference(scores, pair)

    def _member(self, number: int) -> dict[str, Any]:
        model = self.models[number]
        details: Mapping[str, Any] = model.artifact.details if model.artifact is not None else {}
        known = {key: details[key] for key in ("examples", "seconds") if key in details}
        return {
            "name": model.name,
            "weight": self._taken[number],
            "alone": float(self.found.means[1 + number]),
            "worth": _plain(self.found.choice.worth[number]),
            **known,
            **({"licence": self.licences[number]} if self.licences[number] else {}),
        }

    def _set(self, one: UnitScores) -> dict[str, Any]:
        equal, chosen = one.taken([EQUAL, self.chosen]).contributions().mean(1)
        return {
            "name": one.name,
            "metric": one.statistic,
            "units": len(one),
            "unit": one.unit,
            "equal": float(equal),
            "chosen": float(chosen),
            "elsewhere": any(one is other for other in self.found.elsewhere),
        }

    def _anchors(self) -> Sequence[dict[str, Any]]:
        if self.anchors is None:
            return []
        pairs = zip(self.anchors.places, self.anchors.means, strict=True)
        return [
            {
                "weights": dict(zip(self._names, self._weights(place), strict=True)),
                "foretold": float(self.found.means[place]),
                "real": float(real),
            }
            for place, real in pairs
        ]


def _difference(scores: Sequence[UnitScores], pair: Sequence[int]) -> HeldOut:
    """Return how much better the second of a pair is on all units, with its error."""
    rows = [np.diff(one.taken(pair).contributions(), axis=0) for one in scores]
    return HeldOut(float(mean_score(rows)[0]), float(standard_error(rows)[0]))


def _plain(difference: HeldOut) -> dict[str, float]:
    return {"difference": difference.difference, "low": difference.low, "high": difference.high}
