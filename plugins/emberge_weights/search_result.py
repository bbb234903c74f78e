"""The result of a search: the file of weights, a figure, and the artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emberge import Artifact, Model, Workspace
from emberge.contracts import Figure, FigureTable, HeatMap
from emberge_merge import FoundWeights

from emberge_weights.candidates import EQUAL_CANDIDATE, find_single_candidate
from emberge_weights.real_merges import RealMerges
from emberge_weights.search import Search, compare_pair


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Models and results of a search; the base, if any, is the last of the models."""

    models: Sequence[Model]
    search: Search
    real: RealMerges

    def write(self, workspace: Workspace) -> Artifact:
        """Write the file of weights into the step's folder and return its artifact."""
        facts = self.to_facts()
        fingerprints = [model.fingerprint for model in self.models]
        weights = self._list_weights(self.chosen)
        FoundWeights(
            weights=dict(zip(fingerprints, weights, strict=True)),
            names=dict(zip(fingerprints, self._names, strict=True)),
            facts=facts,
        ).write(workspace.folder)
        return Artifact(
            kind="file",
            parents=tuple(fingerprints),
            details={
                "weights": dict(zip(self._names, weights, strict=True)),
                "gain": facts["gain"],
                "alone": {one["name"]: one["alone"] for one in facts["members"]},
            },
            figures=(draw_figure(facts),),
        )

    @cached_property
    def chosen(self) -> int:
        """Index of the candidate to take."""
        return self.real.choose_final(self.search)

    def to_facts(self) -> dict[str, Any]:
        """Return the result's facts as JSON values."""
        means, choice = self.search.means, self.search.choice
        merged_candidates = list(self.real.candidates)
        equal_and_chosen = [
            merged_candidates.index(candidate) for candidate in (EQUAL_CANDIDATE, self.chosen)
        ]
        chosen_weights = zip(self._names, self._list_weights(self.chosen), strict=True)
        merges = zip(self.real.candidates, self.real.means, strict=True)
        return {
            "gain": choice.gain.plain(),
            "clear": choice.gain.is_clear,
            "over_base": choice.over_base.plain() if choice.over_base is not None else None,
            "over_equal": compare_pair(self.real.scores, equal_and_chosen).plain(),
            "candidates": len(means),
            "members": [
                {
                    "name": name,
                    "weight": weight,
                    "alone": float(means[find_single_candidate(member)]),
                }
                for member, (name, weight) in enumerate(chosen_weights)
            ],
            "merges": [
                {
                    "weights": dict(zip(self._names, self._list_weights(candidate), strict=True)),
                    "predicted": float(means[candidate]),
                    "measured": float(real),
                }
                for candidate, real in merges
            ],
        }

    @property
    def _names(self) -> list[str]:
        return [model.name for model in self.models]

    def _list_weights(self, candidate: int) -> list[float]:
        return [float(weight) for weight in self.search.weights[candidate]]


def draw_figure(facts: Mapping[str, Any]) -> Figure:
    """Return the real merges' weights as a figure of a report, below the conclusion of the search."""
    merges = facts["merges"]
    return Figure(
        title="Weights found",
        caption=describe_conclusion(facts),
        heat_map=HeatMap(
            rows=[
                f"predicted {100 * one['predicted']:.2f}, measured {100 * one['measured']:.2f}"
                for one in merges
            ],
            columns=[member["name"] for member in facts["members"]],
            values=[list(one["weights"].values()) for one in merges],
        ),
        table=FigureTable(
            title="Each member, and its score alone",
            head=["Member", "Weight", "Alone"],
            rows=[
                [one["name"], f"{one['weight']:.3f}", f"{100 * one['alone']:.2f}"]
                for one in facts["members"]
            ],
        ),
    )


def describe_conclusion(facts: Mapping[str, Any]) -> str:
    """Return the sentences on what the choice gains, and which weights stay if that may be chance."""
    is_clear, over_base = facts["clear"], facts["over_base"]
    base_weight = facts["members"][-1]["weight"]
    text = (
        f"Weights chosen among {facts['candidates']:,} on half of the queries gain "
        f"{_show_gain(facts['gain'])} points over equal weights on the other half: "
    )
    if is_clear:
        over_equal = _show_gain(facts["over_equal"])
        return f"{text}weights were chosen. Merged for real, they gain {over_equal} on all queries."
    if over_base is None or over_base["low"] > 0:
        return f"{text}that is no more than chance, so the equal weights stay."
    return (
        f"{text}that is no more than chance. Equal weights gain {_show_gain(over_base)} over the base "
        f"alone, which is no more than chance either; the base's weight is {base_weight:.2f}."
    )


def _show_gain(gain: Mapping[str, float]) -> str:
    """Return a difference in points with its interval."""
    low, high = 100 * gain["low"], 100 * gain["high"]
    return f"{100 * gain['difference']:+.2f} [{low:+.2f}, {high:+.2f}]"
