"""Choice of a weighting: nothing but equal weights unless others are better on queries they never saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from emberge import stable_seed
from numpy.typing import NDArray

from emberge_weights.candidates import EQUAL, from_equal
from emberge_weights.unit_scores import UnitScores, mean_score, standard_error

__all__ = ["Choice", "HeldOut", "choose", "held_out", "simplest"]

Array = NDArray[np.float64]
Places = NDArray[np.int64]
# From contributions of the units seen to the place of a weighting.
Rule = Callable[[Sequence[Array]], int]

HALVINGS = 10
# What the choices themselves vary adds to the error of held-out units; measured on scores without signal.
CHOSEN_ERROR = 4 / 3


@dataclass(frozen=True)
class HeldOut:
    """Difference of two rules of choice on units that neither has seen, with its standard error."""

    difference: float
    error: float

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.difference - 1.96 * self.error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.difference + 1.96 * self.error

    @property
    def clear(self) -> bool:
        """True for a difference above zero by more than chance."""
        return self.low > 0


@dataclass(frozen=True)
class Choice:
    """Weighting that was chosen, by its place, and what choosing gained over equal weights, held out."""

    place: int
    gain: HeldOut


def choose(weights: Array, scores: Sequence[UnitScores], seed: int) -> Choice:
    """Return the weighting to take.

    Ten times the units of every set are halved; weights chosen on one half are compared with equal weights
    on the other (cross-fitting). Only where that gain is clear, the simplest weighting within one standard
    error of the best is taken (Breiman et al., 1984), which is the one nearest to equal weights.
    """
    gain = held_out(scores, lambda seen: simplest(weights, seen), lambda _: EQUAL, seed)
    if not gain.clear:
        return Choice(EQUAL, gain)
    return Choice(simplest(weights, [one.contributions() for one in scores]), gain)


def simplest(weights: Array, contributions: Sequence[Array], among: Places | None = None) -> int:
    """Return the place of the weighting nearest to equal ones within a standard error of the best."""
    places = np.arange(len(weights)) if among is None else among
    some = [one[places] for one in contributions]
    means = mean_score(some)
    best = int(means.argmax())
    behind = standard_error([one - one[best] for one in some])
    near = means >= means[best] - behind
    near[best] = True
    distance = np.where(near, from_equal(weights)[places], np.inf)
    # Of equally simple ones the better.
    return int(places[np.lexsort((-means, np.round(distance, 9)))[0]])


def held_out(scores: Sequence[UnitScores], first: Rule, second: Rule, seed: int) -> HeldOut:
    """Return how much better the first rule's choice is than the second's, on units neither saw."""
    differences = [np.zeros(len(one)) for one in scores]
    for seen, unseen in _halves([len(one) for one in scores], seed):
        known = [one.contributions(units) for one, units in zip(scores, seen, strict=True)]
        pair = np.array([first(known), second(known)])
        if pair[0] == pair[1]:
            continue
        for total, one, units in zip(differences, scores, unseen, strict=True):
            a, b = one.taken(pair).contributions(units)
            total[units] += (a - b) / HALVINGS
    rows = [one[None] for one in differences]
    error = CHOSEN_ERROR * standard_error(rows)
    return HeldOut(float(mean_score(rows)[0]), float(error[0]))


def _halves(sizes: Sequence[int], seed: int) -> Iterator[tuple[list[Places], list[Places]]]:
    """Yield units of every set to choose by, and those to judge by, each half in both parts."""
    for number in range(HALVINGS):
        rng = np.random.default_rng(stable_seed(seed, f"halves {number}"))
        orders = [rng.permutation(size) for size in sizes]
        halves = [[order[side::2] for order in orders] for side in (0, 1)]
        yield halves[0], halves[1]
        yield halves[1], halves[0]
