"""Search of a weighting: scores of all candidates, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from emberge import stable_seed
from numpy.typing import NDArray

from emberge_weights.inputs.members import SideVectors
from emberge_weights.inputs.weight_sets import WeightSet
from emberge_weights.search.candidates import draw_candidates
from emberge_weights.search.choice import ChosenWeighting, choose
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import UnitScores, mean_score

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Search:
    """Candidates [n, members] and their scores on each set, with the choice among them."""

    weights: Array
    scores: Sequence[UnitScores]
    elsewhere: Sequence[UnitScores]
    choice: ChosenWeighting

    @property
    def means(self) -> Array:
        """Mean score of each candidate over the sets."""
        return mean_score([one.contributions() for one in self.scores])

    @property
    def means_elsewhere(self) -> Array | None:
        """Mean score of each candidate over the sets elsewhere, None without any."""
        if not self.elsewhere:
            return None
        return mean_score([one.contributions() for one in self.elsewhere])


def search(
    sets: Sequence[WeightSet],
    elsewhere: Sequence[WeightSet],
    members: Sequence[Sequence[SideVectors]],
    *,
    base: bool,
    candidates: int,
    seed: int,
) -> Search:
    """Score all candidates on all sets and choose one.

    Each of `members` has vectors of all sets, those of elsewhere last.
    """
    count = len(members)
    weights = draw_candidates(count - base, base, candidates, stable_seed(seed, "candidates"))
    pool = weights[: 1 + count]  # equal weights, and every member alone
    found = [
        score_set(one, [member[number] for member in members], weights, pool)
        for number, one in enumerate([*sets, *elsewhere])
    ]
    scores = found[: len(sets)]
    return Search(weights, scores, found[len(sets) :], choose(weights, scores, seed))
