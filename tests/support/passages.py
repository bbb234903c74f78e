"""Passages of a space, for tests of what is chosen among them."""

from __future__ import annotations

import numpy as np
from emberge_data import Exclusions, Lists, Passages, Space


def passages(space: Space, positives: list[list[int]], seed: int = 0) -> Passages:
    """Passages of a space whose queries never get their positives, with keys of their places."""
    draw = np.random.default_rng(seed)
    lists = Lists.of(positives)
    keys = (
        draw.integers(0, 2**63, n, dtype=np.uint64) for n in (len(positives), len(space.documents))
    )
    return Passages(lists, Exclusions(lists), *keys)
