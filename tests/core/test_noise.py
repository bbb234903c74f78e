"""Random numbers belong to elements: where they are asked for cannot show."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from emberge.merging.noise import uniform

EXPECTED = [0.9800528287887573, 0.8263492584228516, 0.6272058486938477, 0.9721729755401611]
KEYS = [(0, "w", "model a", ""), (0, "w", "model b", "")]


def test_blocks_do_not_matter() -> None:
    whole = uniform(torch.zeros(2, 101), 0, KEYS)
    for cuts in ([0, 50, 101], [0, 1, 2, 3, 101], [0, 33, 34, 100, 101]):
        parts = [uniform(torch.zeros(2, b - a), a, KEYS) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(parts, 1), whole)


def test_shape_and_dtype_are_the_tensors() -> None:
    wide = uniform(torch.zeros(2, 3, 4, dtype=torch.float64), 0, KEYS)
    assert wide.shape == (2, 3, 4)
    assert wide.dtype == torch.float64
    assert torch.equal(wide.float(), uniform(torch.zeros(2, 3, 4), 0, KEYS))


def test_numbers_are_uniform() -> None:
    numbers = uniform(torch.zeros(2, 200_000), 7, KEYS).double()
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    for row in numbers:
        counts = torch.histc(row, 100, 0, 1)
        expected = len(row) / 100
        # Chi squared with 99 degrees of freedom exceeds 160 once in ten thousand.
        assert float(((counts - expected) ** 2 / expected).sum()) < 160
    pair = numbers[:, :-1] - 0.5, numbers[:, 1:] - 0.5
    assert float((pair[0] * pair[1]).mean().abs()) < 1e-3, "neighbours are related"
    assert float(((numbers[0] - 0.5) * (numbers[1] - 0.5)).mean().abs()) < 1e-3


@pytest.mark.parametrize("place", range(4))
def test_every_part_of_the_key_matters(place: int) -> None:
    other = list(KEYS[0])
    other[place] = 1 if place == 0 else "other"
    first, second = uniform(torch.zeros(2, 64), 0, [KEYS[0], tuple(other)])
    assert not torch.equal(first, second)
    assert float((first - second).abs().mean()) > 0.1


def test_the_numbers_never_change() -> None:
    # Written down once: masks of published merges must come out again with every later version.
    found = uniform(torch.zeros(1, 4), 1, [(0, "w", "m", "")])[0].tolist()
    assert found == pytest.approx(EXPECTED, abs=1e-9)


def test_a_key_each_is_needed() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 models"):
        uniform(torch.zeros(2, 4), 0, KEYS[:1])
