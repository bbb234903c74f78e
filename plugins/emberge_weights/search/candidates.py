"""Candidates: the weightings whose scores are looked at."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

# Place of equal weights among the candidates.
EQUAL = 0
# Low ones draw near a single model, high ones near equal weights.
CONCENTRATIONS = (0.3, 1.0, 3.0, 10.0)
SHARES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
Weights = NDArray[np.float64]


def draw_candidates(models: int, base: bool, count: int, seed: int) -> Weights:
    """Return weightings [candidates, members], each of sum 1, of `models` and, last, their base.

    The first has equal weights of the models and none of the base. Then come every member alone, the means
    with one model left out, equal weights on their way to the base, and random ones up to `count`: of all
    members, of all but one, and of the models with a tenth to nine tenths of the base. Those that are fixed
    are never fewer than they are.
    """
    fixed = fixed_candidates(models, base)
    rng = np.random.default_rng(seed)
    drawn = itertools.islice(_drawn(models, base, rng), max(0, count - len(fixed)))
    return np.concatenate([fixed, *(one[None] for one in drawn)])


def fixed_candidates(models: int, base: bool) -> Weights:
    """Return the weightings that every search looks at, which are the first ones."""
    members = models + base
    equal = np.zeros(members)
    equal[:models] = 1 / models
    rows = [equal, *np.eye(members)]
    if models > 2:
        for left_out in range(models):
            others = np.zeros(members)
            others[:models] = 1 / (models - 1)
            others[left_out] = 0
            rows.append(others)
    if base:
        rows += [(1 - share) * equal + share * np.eye(members)[-1] for share in SHARES]
    return np.stack(rows)


def from_equal(weights: Weights) -> NDArray[np.float64]:
    """Return how far each weighting is from the first: the share that would have to move, 0 to 1."""
    distance: NDArray[np.float64] = np.abs(weights - weights[EQUAL]).sum(1) / 2
    return distance


def _drawn(models: int, base: bool, rng: np.random.Generator) -> itertools.chain[Weights]:
    members = models + base

    def one(number: int) -> Weights:
        concentration = CONCENTRATIONS[number % len(CONCENTRATIONS)]
        kind = (number // len(CONCENTRATIONS)) % 3
        if kind == 1 and members > 2:
            return np.insert(
                rng.dirichlet([concentration] * (members - 1)), rng.integers(members), 0.0
            )
        if kind == 2 and base:
            share = rng.uniform(SHARES[0], SHARES[-1])
            return np.append((1 - share) * rng.dirichlet([concentration] * models), share)
        return rng.dirichlet([concentration] * members)

    return itertools.chain(one(number) for number in itertools.count())
