"""Candidate weightings: equal weights, members alone, mixtures with the base, and random ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from emberge_weights.unit_scores import Array

# Index of equal weights among the candidates; next come the members alone (`find_single_candidate`).
EQUAL_CANDIDATE = 0
# Low ones draw near a single model, high ones near equal weights.
CONCENTRATIONS = (0.3, 1.0, 3.0, 10.0)
SHARES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))


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


def _yield_drawn(models: int, base: bool, rng: np.random.Generator) -> Iterator[Array]:
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

    return map(draw_weighting, itertools.count())
