"""Random numbers belong to elements: where they are asked for cannot show."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from emberge.numerics import noise
from emberge.numerics.noise import draw_uniform

EXPECTED = [0.8680340051651001, 0.34566229581832886, 0.8321697115898132, 0.5524078607559204]
CPU = torch.device("cpu")
KEYS = [(0, "w", "model a", ""), (0, "w", "model b", "")]


def test_block_sizes_change_no_number() -> None:
    whole = draw_uniform(torch.zeros(2, 101), 0, KEYS)
    for cuts in ([0, 50, 101], [0, 1, 2, 3, 101], [0, 33, 34, 100, 101]):
        parts = [draw_uniform(torch.zeros(2, b - a), a, KEYS) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(parts, 1), whole)


def test_shape_and_dtype_are_the_tensors() -> None:
    wide = draw_uniform(torch.zeros(2, 3, 4, dtype=torch.float64), 0, KEYS)
    assert wide.shape == (2, 3, 4)
    assert wide.dtype == torch.float64
    assert torch.equal(wide.float(), draw_uniform(torch.zeros(2, 3, 4), 0, KEYS))


@pytest.mark.parametrize("place", range(4))
def test_every_part_of_a_key_changes_the_numbers(place: int) -> None:
    other = list(KEYS[0])
    other[place] = 1 if place == 0 else "other"
    first, second = draw_uniform(torch.zeros(2, 64), 0, [KEYS[0], tuple(other)])
    assert not torch.equal(first, second)
    assert float((first - second).abs().mean()) > 0.1


def test_the_numbers_never_change() -> None:
    # Written down once: masks of published merges must come out again with every later version.
    found = draw_uniform(torch.zeros(1, 4), 1, [(0, "w", "m", "")])[0].tolist()
    assert found == EXPECTED


def test_words_of_torch_are_those_of_numpy() -> None:
    """NumPy makes them on a CPU, torch elsewhere."""
    for first in (1, 12345, (1 << 32) - 500):
        numbers = [
            noise._apply_key(noise._mix_positions(first, 500, d), 77, 999) for d in (None, CPU)
        ]
        assert torch.equal(*(words.long() for words in numbers))


@pytest.mark.parametrize("lag", [0, 1, 2, 64, 1024])
def test_pairs_are_uniform(lag: int) -> None:
    """Of neighbours in a model, of places in two models, and in two tensors: by 64 x 64 cells."""
    size = 1 << 18
    keys = [*KEYS, (0, "v", "model a", "")]
    cells = (draw_uniform(torch.zeros(3, size), 1 << 31, keys) * 64).long()
    for first, second in ((0, 0), (0, 1), (0, 2)):
        if first == second and not lag:
            continue
        pairs = cells[first, : size - lag] * 64 + cells[second, lag:]
        counts = torch.bincount(pairs, minlength=4096).double()
        expected = len(pairs) / 4096
        # Chi squared with 4,095 degrees of freedom: mean 4,095, standard deviation 90.5.
        assert abs(float(((counts - expected) ** 2 / expected).sum()) - 4095) < 4.5 * 90.5


def test_each_model_needs_a_key() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 models"):
        draw_uniform(torch.zeros(2, 4), 0, KEYS[:1])
