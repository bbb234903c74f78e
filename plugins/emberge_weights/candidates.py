"""Candidate weightings: drawing, scoring, and choosing the simplest among the best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from emberge import make_seed

from emberge_weights.judged_sets import JudgedSet
from emberge_weights.members import VectorsBySet
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import (
    Array,
    Indices,
    UnitScores,
    compute_mean_score,
    compute_standard_error,
)

# Index of equal weights among the candidates; next come the members alone (`find_single_candidate`).
EQUAL_CANDIDATE = 0
# Low ones draw near a single model, high ones near equal weights.
CONCENTRATIONS = (0.3, 1.0, 3.0, 10.0)
SHARES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
# Share of the base where the models' mean is not clearly better than the base alone.
CAUTIOUS_SHARE = 0.5
HALVINGS = 10
# What the choices themselves vary adds to the error of held-out units; measured on scores without signal.
CHOSEN_ERROR = 4 / 3


def draw_candidates(
    models: int, base: bool, count: int, seed: int, base_share: float = 0.0
) -> Array:
    """Return weightings [candidates, members] that sum to 1; the members are `models` and, last, their base.

    The first weighting has equal weights of the models, and `base_share` of the base. Next come each member
    alone, means without one model, mixtures of equal weights and the base, and random weightings up to
    `count`: of all members, of all members but one, and of the models with a share of 0.1 to 0.9 for the
    base. All weightings that are not random are returned, even if they are more than `count`.
    """
    fixed = list_fixed_candidates(models, base, base_share)
    rng = np.random.default_rng(seed)
    random_weightings = itertools.islice(
        _yield_drawn(models, base, rng), max(0, count - len(fixed))
    )
    return np.concatenate([fixed, *(weights[None] for weights in random_weightings)])


def list_fixed_candidates(models: int, base: bool, base_share: float = 0.0) -> Array:
    """Return the weightings that every search scores; random weightings follow them."""
    members = models + base
    equal = np.zeros(members)
    equal[:models] = 1 / models
    rows = [equal, *np.eye(members)]
    if base_share:
        rows[0] = (1 - base_share) * equal + base_share * np.eye(members)[-1]
        rows.append(equal)
    if models > 2:
        for left_out in range(models):
            zeros = np.zeros(members)
            zeros[:models] = 1 / (models - 1)
            zeros[left_out] = 0
            rows.append(zeros)
    if base:
        rows += [(1 - share) * equal + share * np.eye(members)[-1] for share in SHARES]
    return np.stack(rows)


def find_single_candidate(member: int) -> int:
    """Return the index of the candidate in which one member, given by its number, has all the weight."""
    return EQUAL_CANDIDATE + 1 + member


def measure_distance_from_equal(weights: Array) -> Array:
    """Return the distance of each weighting from the first: the share of weight that is moved, 0 to 1."""
    distance: Array = np.abs(weights - weights[EQUAL_CANDIDATE]).sum(1) / 2
    return distance


def _yield_drawn(models: int, base: bool, rng: np.random.Generator) -> itertools.chain[Array]:
    members = models + base

    def draw_weighting(number: int) -> Array:
        concentration = CONCENTRATIONS[number % len(CONCENTRATIONS)]
        variant = (number // len(CONCENTRATIONS)) % 3
        if variant == 1 and members > 2:
            return np.insert(
                rng.dirichlet([concentration] * (members - 1)), rng.integers(members), 0.0
            )
        if variant == 2 and base:
            share = rng.uniform(SHARES[0], SHARES[-1])
            return np.append((1 - share) * rng.dirichlet([concentration] * models), share)
        return rng.dirichlet([concentration] * members)

    return itertools.chain(draw_weighting(number) for number in itertools.count())


@dataclass(frozen=True, eq=False)
class Search:
    """Scored candidates [n, members] of a search, with scores on each set, and the choice among them."""

    weights: Array
    scores: Sequence[UnitScores]
    choice: ChosenWeighting

    @property
    def means(self) -> Array:
        """Mean score of each candidate over the sets."""
        return compute_mean_score(
            [set_scores.compute_contributions() for set_scores in self.scores]
        )


def search_weights(
    sets: Sequence[JudgedSet],
    members: VectorsBySet,
    *,
    base: bool,
    candidates: int,
    seed: int,
    base_share: float = 0.0,
) -> Search:
    """Score all candidates on all sets and choose one."""
    count = len(members)
    weights = draw_candidates(
        count - base, base, candidates, make_seed(seed, "candidates"), base_share
    )
    pool = weights[[EQUAL_CANDIDATE, *map(find_single_candidate, range(count))]]
    scores = [
        score_set(judged_set, [member[number] for member in members], weights, pool)
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
        contributions = [set_scores.compute_contributions() for set_scores in scores]
        return ChosenWeighting(choose_simplest(weights, contributions), gain)
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
