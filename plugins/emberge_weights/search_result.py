"""The result of a search: the file of weights, a figure, and the artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emberge import Artifact, Model, Workspace
from emberge_merge import FoundWeights

from emberge_weights.candidates import EQUAL, HeldOut, Search, compare
from emberge_weights.real_merges import RealMerges
from emberge_weights.unit_scores import UnitScores


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Models and results of a search; the base, if any, is the last of the models."""

    models: Sequence[Model]
    search: Search
    real: RealMerges

    def write(self, workspace: Workspace) -> Artifact:
        """Write the file of weights into the step's folder and return its artifact."""
        facts = self.facts()
        weights = dict(zip(self._fingerprints, self._list_weights(self.chosen), strict=True))
        names = {model.fingerprint: model.name for model in self.models}
        FoundWeights(weights=weights, names=names, facts=facts).write(workspace.folder)
        return Artifact(
            kind="file",
            parents=tuple(self._fingerprints),
            details={
                "weights": {member["name"]: member["weight"] for member in facts["members"]},
                "headroom": facts["headroom"],
                "score": facts["score"],
                "figures": [draw_figure(facts)],
            },
        )

    @property
    def _fingerprints(self) -> list[str]:
        return [model.fingerprint for model in self.models]

    @cached_property
    def chosen(self) -> int:
        """Index of the candidate to take."""
        return self.real.final(self.search)

    @cached_property
    def correction(self) -> float:
        """Mean difference of real and predicted scores over the merges."""
        return float((self.real.means - self.search.means[list(self.real.places)]).mean())

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
            "sets": [self._describe_set(set_scores) for set_scores in self.search.scores],
            "merges": self._describe_merges(),
        }

    def _name_weights(self, candidate: int) -> dict[str, float]:
        names = [model.name for model in self.models]
        return dict(zip(names, self._list_weights(candidate), strict=True))

    def _list_weights(self, candidate: int) -> list[float]:
        return [float(weight) for weight in self.search.weights[candidate]]

    def _score_chosen(self) -> tuple[float, HeldOut]:
        """Return (real score of the choice, its gain over equal weights)."""
        row = list(self.real.places).index(self.chosen)
        return float(self.real.means[row]), compare(self.real.scores, [0, row])

    def _describe_member(self, number: int) -> dict[str, Any]:
        return {
            "name": self.models[number].name,
            "weight": self._list_weights(self.chosen)[number],
            "alone": float(self.search.means[1 + number]),
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
        }

    def _describe_merges(self) -> list[dict[str, Any]]:
        pairs = zip(self.real.places, self.real.means, strict=True)
        return [
            {
                "weights": self._name_weights(candidate),
                "foretold": float(self.search.means[candidate]),
                "real": float(real),
            }
            for candidate, real in pairs
        ]


def draw_figure(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the real merges' weights as a figure of a report, below the conclusion of the search."""
    merges = facts["merges"]
    return {
        "title": "Weights found",
        "caption": describe_conclusion(facts),
        "heat_map": {
            "rows": [
                f"foretold {100 * one['foretold']:.2f}, real {100 * one['real']:.2f}"
                for one in merges
            ],
            "columns": [member["name"] for member in facts["members"]],
            "values": [list(one["weights"].values()) for one in merges],
        },
        "table": {
            "title": "Each member, and its score alone",
            "head": ["Member", "Weight", "Alone"],
            "rows": [
                [one["name"], f"{one['weight']:.3f}", f"{100 * one['alone']:.2f}"]
                for one in facts["members"]
            ],
        },
    }


def describe_conclusion(facts: Mapping[str, Any]) -> str:
    """Return the sentences on what the choice gains, and which weights stay if that may be chance."""
    is_clear, over_base = facts["clear"], facts["over_base"]
    text = (
        f"Choosing among {facts['candidates']:,} weightings gains {_show_gain(facts['headroom'])} points "
        "over equal weights on queries that were not chosen by: "
    )
    if is_clear:
        over_equal = _show_gain(facts["score"]["over_equal"])
        return f"{text}weights were chosen. Merged for real, they gain {over_equal} on all queries."
    if over_base is None or over_base["low"] > 0:
        return f"{text}that is no more than chance, so the equal weights stay."
    return (
        f"{text}that is no more than chance. Equal weights gain {_show_gain(over_base)} over the base "
        "alone, which is no more than chance either, so the base has a half."
    )


def _show_gain(gain: Mapping[str, float]) -> str:
    """Return a difference in points with its interval."""
    low, high = 100 * gain["low"], 100 * gain["high"]
    return f"{100 * gain['difference']:+.2f} [{low:+.2f}, {high:+.2f}]"
