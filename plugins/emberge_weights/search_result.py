"""The result of a search: the file of weights, a table, and the artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from emberge import Artifact, Model, Workspace
from emberge.files import write_text
from emberge.merging import FoundWeights
from numpy.typing import NDArray
from scipy.stats import spearmanr

from emberge_weights.candidates import EQUAL, HeldOut, Search, compare
from emberge_weights.layers.layer_search import Layers
from emberge_weights.real_merges import RealMerges
from emberge_weights.unit_scores import UnitScores, mean_score
from emberge_weights.weights_table import table

Array = NDArray[np.float64]
# Candidates that are drawn, and rows of the front that are listed.
DRAWN = 300
ROWS = 12
TABLE = "weights.md"


@dataclass(frozen=True, eq=False)
class Front:
    """Gains of all candidates over a `reference`, in the data and elsewhere, and the front's candidates."""

    reference: str
    gains: Array
    elsewhere: Array
    places: Sequence[int]
    chosen: int
    weights: Array
    base: bool

    def plain(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return evenly spaced candidates of the front, with their weights by name."""
        return [
            {
                "gain": float(self.gains[candidate]),
                "elsewhere": float(self.elsewhere[candidate]),
                "weights": dict(zip(names, self.weights[candidate].tolist(), strict=True)),
                "over": self.reference,
            }
            for candidate in _spread(self.places, ROWS)
        ]

    def figures(self) -> list[dict[str, Any]]:
        """Return the figure of a report."""
        marked_candidates = {"equal weights": EQUAL, "chosen": self.chosen}
        if self.base:
            marked_candidates["base"] = self.weights.shape[
                1
            ]  # after equal weights every member alone
        series: dict[str, list[Any]] = {
            "candidates": [
                self._make_point(candidate) for candidate in range(min(DRAWN, len(self.gains)))
            ],
            "front": [self._make_point(candidate) for candidate in self.places],
            **{
                name: [[*self._make_point(candidate), name]]
                for name, candidate in marked_candidates.items()
            },
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
                        for x, y in (
                            self._make_point(candidate) for candidate in _spread(self.places, ROWS)
                        )
                    ],
                },
            }
        ]

    def _make_point(self, candidate: int) -> list[float]:
        return [
            round(100 * float(self.gains[candidate]), 3),
            round(100 * float(self.elsewhere[candidate]), 3),
        ]


def front_of(search: Search, choice: int, base: bool) -> Front | None:
    """Return the Pareto front of all candidates, least loss elsewhere first; None without sets elsewhere."""
    elsewhere, means = search.means_elsewhere, search.means
    if elsewhere is None:
        return None
    zero = search.weights.shape[1] if base else EQUAL
    places: list[int] = []
    for candidate in np.lexsort((-means, -elsewhere)).tolist():
        if not places or means[candidate] > means[places[-1]]:
            places.append(candidate)
    return Front(
        "the base" if base else "equal weights",
        means - means[zero],
        elsewhere - elsewhere[zero],
        places,
        choice,
        search.weights,
        base,
    )


def _spread(places: Sequence[int], count: int) -> list[int]:
    if len(places) <= count:
        return list(places)
    return [places[round(i * (len(places) - 1) / (count - 1))] for i in range(count)]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Models and results of a search; the base, if any, is the last of the models.

    `real` are the merges that were made and scored; None if there are none.
    """

    models: Sequence[Model]
    licences: Sequence[str | None]
    search: Search
    real: RealMerges | None
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
                "weights": {member["name"]: member["weight"] for member in facts["members"]},
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
        """Index of the candidate to take."""
        return self.real.final(self.search) if self.real else self.search.choice.place

    @cached_property
    def correction(self) -> float:
        """Mean difference of real and predicted scores over the anchors."""
        if self.real is None:
            return 0.0
        count = self.real.anchors
        predicted_means = self.search.means[list(self.real.places[:count])]
        return float((self.real.means[:count] - predicted_means).mean())

    @cached_property
    def front(self) -> Front | None:
        """Candidates that no other beats both in the data and elsewhere; None without sets elsewhere."""
        return front_of(self.search, self.chosen, self.base)

    def facts(self) -> dict[str, Any]:
        """Return the result's facts as JSON values."""
        means, choice = self.search.means, self.search.choice
        real, difference = self._score_chosen()
        return {
            "score": {
                "foretold": float(means[self.chosen] + self.correction),
                "real": real,
                "equal": float(means[EQUAL] + self.correction),
                "over_equal": difference.plain(),
            },
            "headroom": choice.gain.plain(),
            "clear": choice.gain.clear,
            "over_base": choice.over_base.plain() if choice.over_base is not None else None,
            "correction": self.correction,
            "candidates": len(means),
            "members": [self._describe_member(number) for number in range(len(self.models))],
            "sets": [
                self._describe_set(set_scores)
                for set_scores in (*self.search.scores, *self.search.elsewhere)
            ],
            "anchors": self._describe_anchors()[: self.real.anchors if self.real else 0],
            "trials": describe_trials(self.search, self.real, self.chosen) if self.real else None,
            "front": self.front.plain(self._names) if self.front is not None else [],
            **({"layers": self._describe_layers(self.layers)} if self.layers is not None else {}),
        }

    @property
    def _layered(self) -> bool:
        """True if weights by layer were fitted and are better than one weight for all layers."""
        return self.layers is not None and self.layers.gain.clear

    @property
    def _taken(self) -> list[float]:
        """Weights of the result; for weights by layer, the means over layers."""
        if self.layers is not None and self._layered:
            return [float(weight) for weight in self.layers.coefficients.mean(0)]
        return self._list_weights(self.chosen)

    def _describe_layers(self, layers: Layers) -> dict[str, Any]:
        weights = {
            name: dict(zip(layers.blocks, values, strict=True))
            for name, values in zip(self._names, layers.coefficients.T.tolist(), strict=True)
        }
        return {"gain": layers.gain.plain(), "clear": layers.gain.clear, "weights": weights}

    @property
    def _names(self) -> list[str]:
        return [model.name for model in self.models]

    def _list_weights(self, candidate: int) -> list[float]:
        return [float(weight) for weight in self.search.weights[candidate]]

    def _score_chosen(self) -> tuple[float | None, HeldOut]:
        """Return (real score of the choice, or None without merges; its gain over equal weights)."""
        scores, pair = self.search.scores, [EQUAL, self.chosen]
        real = None
        if self.real is not None:
            row = list(self.real.places).index(self.chosen)
            scores, pair = self.real.scores, [0, row]
            real = float(self.real.means[row])
        return real, compare(scores, pair)

    def _describe_member(self, number: int) -> dict[str, Any]:
        model = self.models[number]
        details: Mapping[str, Any] = model.details
        costs = {key: details[key] for key in ("examples", "seconds") if key in details}
        return {
            "name": model.name,
            "weight": self._taken[number],
            "alone": float(self.search.means[1 + number]),
            "worth": self.search.choice.worth[number].plain(),
            **costs,
            **({"licence": self.licences[number]} if self.licences[number] else {}),
        }

    def _describe_set(self, set_scores: UnitScores) -> dict[str, Any]:
        equal, chosen_score = set_scores.select([EQUAL, self.chosen]).contributions().mean(1)
        return {
            "name": set_scores.name,
            "metric": set_scores.statistic,
            "units": len(set_scores),
            "unit": set_scores.unit,
            "equal": float(equal),
            "chosen": float(chosen_score),
            "elsewhere": any(set_scores is other for other in self.search.elsewhere),
        }

    def _describe_anchors(self) -> Sequence[dict[str, Any]]:
        if self.real is None:
            return []
        pairs = zip(self.real.places, self.real.means, strict=True)
        return [
            {
                "weights": dict(zip(self._names, self._list_weights(candidate), strict=True)),
                "foretold": float(self.search.means[candidate]),
                "real": float(real),
            }
            for candidate, real in pairs
        ]


def describe_trials(search: Search, real: RealMerges, choice: int) -> dict[str, Any] | None:
    """Return the results of the trials as JSON; None without trials.

    For the data, these are the rank correlation of predicted and real scores, and the largest error of a
    prediction. For the tests, they are the real scores of equal weights (always the first merge), of the
    choice, of the trial that was best in the data, and of the trial that is best on the tests.
    """
    trials = range(real.anchors, len(real.places))
    if not trials:
        return None
    predicted_means, means = search.means[list(real.places)], real.means
    trial_numbers = list(trials)
    return {
        "count": len(trials),
        "rank_correlation": float(
            spearmanr(predicted_means[trial_numbers], means[trial_numbers]).statistic
        ),
        "largest_error": float(np.abs(predicted_means[trial_numbers] - means[trial_numbers]).max()),
        "tests": _compare_on_tests(real, list(real.places).index(choice), trial_numbers)
        if real.tests
        else None,
    }


def _compare_on_tests(real: RealMerges, row: int, trials: Sequence[int]) -> dict[str, Any]:
    means = mean_score([set_scores.contributions() for set_scores in real.tests])
    swept = trials[int(real.means[trials].argmax())]
    best = trials[int(means[trials].argmax())]
    return {
        "equal": float(means[0]),
        "chosen": float(means[row]),
        "swept": float(means[swept]),
        "best": float(means[best]),
        "over_swept": compare(real.tests, [swept, row]).plain(),
        "over_best": compare(real.tests, [best, row]).plain(),
        "units": sum(map(len, real.tests)),
    }
