"""Search among weightings: all are scored, and the simplest among the best is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from emberge import make_seed

from emberge_weights.candidates import (
    EQUAL_CANDIDATE,
    draw_candidates,
    find_single_candidate,
    measure_distance_from_equal,
)
from emberge_weights.judged_sets import JudgedSet
from emberge_weights.members import MemberVectors
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import (
    Array,
    Indices,
    UnitScores,
    compute_mean_score,
    compute_standard_error,
    list_contributions,
)

# Share of the base where the models' mean is not clearly better than the base alone.
CAUTIOUS_SHARE = 0.5
HALVINGS = 10
# What the choices themselves vary adds to the error of held-out units; measured on scores without signal.
CHOSEN_ERROR = 4 / 3


@dataclass(frozen=True, eq=False)
class Search:
    """Scored candidates [n, members] of a search, with scores on each set, and the choice among them."""

    weights: Array
    scores: Sequence[UnitScores]
    choice: ChosenWeighting

    @property
    def means(self) -> Array:
        """Mean score of each candidate over the sets."""
        return compute_mean_score(list_contributions(self.scores))


def search_weights(
    sets: Sequence[JudgedSet],
    vectors_by_member: MemberVectors,
    *,
    base: bool,
    candidates: int,
    seed: int,
    base_share: float = 0.0,
) -> Search:
    """Score all candidates on all sets and choose one."""
    count = len(vectors_by_member)
    weights = draw_candidates(
        count - base, base, candidates, make_seed(seed, "candidates"), base_share
    )
    pool = weights[[EQUAL_CANDIDATE, *map(find_single_candidate, range(count))]]
    scores = [
        score_set(judged_set, [vectors[number] for vectors in vectors_by_member], weights, pool)
        for number, judged_set in enumerate(sets)
    ]
    cautious = find_cautious(weights) if 0 < base_share < CAUTIOUS_SHARE else None
    choice = choose_weighting(weights, scores, seed, cautious)
    return Search(weights, scores, choice)


def find_cautious(weights: Array) -> int:
    """Return the index of the weighting in which the base has `CAUTIOUS_SHARE`, and the models the rest."""
    members = weights.shape[1]
    wanted = np.full(members, (1 - CAUTIOUS_SHARE) / (members - 1))
    wanted[-1] = CAUTIOUS_SHARE
    return int(np.abs(weights - wanted).sum(1).argmin())


@dataclass(frozen=True)
class HeldOut:
    """Difference in score between two rules of choice on held-out units, with its standard error."""

    difference: float
    error: float

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval of the difference."""
        return self.difference - 1.96 * self.error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval of the difference."""
        return self.difference + 1.96 * self.error

    @property
    def is_clear(self) -> bool:
        """True if the whole interval is above zero."""
        return self.low > 0

    def plain(self) -> dict[str, float]:
        """Return the difference and its interval, as JSON."""
        return {"difference": self.difference, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class ChosenWeighting:
    """Index of the chosen weighting, and its held-out gain over equal weights.

    `over_base` is the gain of equal weights over the base alone, if it decided between these and a larger
    share of the base.
    """

    index: int
    gain: HeldOut
    over_base: HeldOut | None = None


def choose_weighting(
    weights: Array, scores: Sequence[UnitScores], seed: int, cautious: int | None = None
) -> ChosenWeighting:
    """Return the chosen weighting.

    The units of every set are halved at random ten times. Weights chosen on one half are compared on the
    other half (cross-fitting) with equal weights. If the gain over equal weights is clear, the result is the
    weighting nearest to equal weights within one standard error of the best (Breiman et al., 1984); else it
    is equal weights. If `cautious` is given, it takes the place of equal weights that are not clearly better
    than the base alone.
    """
    gain = measure_held_out(scores, lambda seen: choose_simplest(weights, seen), seed)
    if gain.is_clear:
        return ChosenWeighting(choose_simplest(weights, list_contributions(scores)), gain)
    if cautious is None:
        return ChosenWeighting(EQUAL_CANDIDATE, gain)
    base = weights.shape[1] - 1  # the last member
    over_base = compare_pair(scores, [find_single_candidate(base), EQUAL_CANDIDATE])
    return ChosenWeighting(EQUAL_CANDIDATE if over_base.is_clear else cautious, gain, over_base)


def choose_simplest(weights: Array, contributions: Sequence[Array]) -> int:
    """Return the index of the weighting nearest to equal weights within a standard error of the best."""
    means = compute_mean_score(contributions)
    best = int(means.argmax())
    errors = compute_standard_error([part - part[best] for part in contributions])
    is_close = means >= means[best] - errors
    is_close[best] = True
    distance = np.where(is_close, measure_distance_from_equal(weights), np.inf)
    # Of equally simple ones the better.
    return int(np.lexsort((-means, np.round(distance, 9)))[0])


def compare_pair(scores: Sequence[UnitScores], pair: Sequence[int]) -> HeldOut:
    """Return the gain of the second of two weightings over the first on all units, and its error."""
    rows = [
        np.diff(set_scores.select(pair).compute_contributions(), axis=0) for set_scores in scores
    ]
    return HeldOut(float(compute_mean_score(rows)[0]), float(compute_standard_error(rows)[0]))


def measure_held_out(
    scores: Sequence[UnitScores], rule: Callable[[Sequence[Array]], int], seed: int
) -> HeldOut:
    """Return the gain of a rule's choice over equal weights, on units that the rule has not seen.

    `rule` takes the contributions of the seen units and returns the index of the weighting that it chooses.
    """
    gains = [np.zeros((1, len(set_scores))) for set_scores in scores]
    for seen, unseen in split_halves([len(set_scores) for set_scores in scores], seed):
        seen_contributions = [
            set_scores.compute_contributions(units)
            for set_scores, units in zip(scores, seen, strict=True)
        ]
        pair = [rule(seen_contributions), EQUAL_CANDIDATE]
        for gain, set_scores, units in zip(gains, scores, unseen, strict=True):
            choice, equal = set_scores.select(pair).compute_contributions(units)
            gain[0, units] += (choice - equal) / HALVINGS
    return HeldOut(
        float(compute_mean_score(gains)[0]), CHOSEN_ERROR * float(compute_standard_error(gains)[0])
    )


def split_halves(sizes: Sequence[int], seed: int) -> Iterator[tuple[list[Indices], list[Indices]]]:
    """Yield (units to choose by, units to judge by), lists over sets; then the halves exchanged."""
    for number in range(HALVINGS):
        rng = np.random.default_rng(make_seed(seed, f"halves {number}"))
        orders = [rng.permutation(size) for size in sizes]
        sides = [[order[side::2] for order in orders] for side in (0, 1)]
        yield sides[0], sides[1]
        yield sides[1], sides[0]
