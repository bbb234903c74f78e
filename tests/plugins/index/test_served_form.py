"""The form of a server's vectors, and their distances from a model's, on numbers chosen by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from emberge_index.served.served_form import ServedForm, measure_form

Rows = np.ndarray[Any, Any]


def _rows(dimension: int, *, count: int = 40, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((count, dimension))


@pytest.mark.parametrize("dimension", [16, 12])
@pytest.mark.parametrize("shift", [0, 128], ids=["unsigned", "signed"])
def test_bits_of_either_byte_are_unpacked(dimension: int, shift: int) -> None:
    """Twelve bits fill a byte and a half."""
    own = _rows(dimension)
    form, distances = measure_form(np.packbits(own > 0, axis=1).astype(np.float64) - shift, own)
    assert form == ServedForm(dimension, "bits")
    assert distances.tolist() == [0] * len(own)


@pytest.mark.parametrize("below", [0.0, -1.0])
def test_signs_are_compared_by_the_angle_of_their_share(below: float) -> None:
    own = _rows(8)
    signs = np.where(own > 0, 1.0, below)
    form, distances = measure_form(signs, own)
    assert form == ServedForm(8, "signs")
    assert distances.tolist() == [0] * len(own)
    signs[0, :2] = below + 1 - signs[0, :2]  # two of eight: an angle of 45 degrees
    assert measure_form(signs, own)[1][0] == pytest.approx(2 * math.sin(math.pi / 8))


def test_codes_are_measured_by_the_spread_of_the_numbers() -> None:
    """Codes of another model are far away, however little the model's numbers differ."""
    own = _rows(32, count=200)
    right, foreign = np.rint(20 * own + 3), np.rint(20 * _rows(32, count=200, seed=1))
    for scale in (1.0, 1e-3):
        form, distances = measure_form(right, scale * own + 1)
        assert (form, distances.max() < 0.05) == (ServedForm(32, "int8"), True)
        assert measure_form(foreign, scale * own + 1)[1].min() > 0.5


@pytest.mark.parametrize(
    ("own_length", "served_length", "scaled"),
    [
        (1.0, 1.0, None),
        (1.0, 1.04, None),
        (1.0, 1.2, False),
        (1.0, 0.8, False),
        (3.0, 3.0, None),
        (3.0, 1.0, True),
        (3.0, 2.0, False),
    ],
)
def test_lengths_are_told_apart(
    own_length: float, served_length: float, scaled: bool | None
) -> None:
    units = _rows(8)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    form, distances = measure_form(served_length * units, own_length * units)
    assert form == ServedForm(8, "float", scaled)
    assert distances.max() < 1e-9


def test_a_prefix_may_keep_its_length_or_be_scaled() -> None:
    own = _rows(8)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    short = own[:, :5]
    for served in (short, short / np.linalg.norm(short, axis=1, keepdims=True)):
        form, distances = measure_form(served, own)
        assert form == ServedForm(5, "float")
        assert distances.max() < 1e-9


def test_longer_vectors_are_infinitely_far() -> None:
    form, distances = measure_form(_rows(9), _rows(8))
    assert form == ServedForm(9, "float")
    assert np.isinf(distances).all()
