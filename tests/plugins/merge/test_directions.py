"""Directions from inner products: small angles, frozen models, lengths far apart, opposite ways."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from emberge_merge.methods.spherical.mean_directions import Karcher
from torch import Tensor

from tests.support.chains import blocks_of, chain, merge_one
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.tolerance import EXACT, assert_combined, exactly, likely, unit

SPACES: list[tuple[str, dict[str, Any]]] = [
    ("multi_slerp", {"space": "deltas"}),
    ("multi_slerp", {"space": "deltas", "mode": "projected"}),
    ("nuslerp", {}),
]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("name", "options"), SPACES)
def test_a_model_that_did_not_move_has_no_direction(
    name: str, options: dict[str, Any], place: int
) -> None:
    """Wherever it stands: its change is zero to the bit, and rounding must not give it a way to point."""
    torch.manual_seed(0)
    base = torch.randn(200, 300)
    models = [base + 0.01 * torch.randn(200, 300)]
    models.insert(place, base.clone())
    merged = merge_state_dicts([{"w": m} for m in models], chain(name, **options), {"w": base})
    assert_combined(merged["w"], [base, models[1 - place], base], [1, 0.5, -0.5])


def angle(a: Tensor, b: Tensor) -> float:
    u, v = a / a.norm(), b / b.norm()
    return 2 * math.atan2(float((u - v).norm()), float((u + v).norm()))


@pytest.mark.parametrize("ratio", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("apart", [1e-3, 0.5, 3.0])
def test_slerp_halves_the_angle_of_vectors_of_any_lengths(apart: float, ratio: float) -> None:
    """T = 1/2 lies half the angle from either, however long one is beside the other."""
    torch.manual_seed(1)
    first = torch.randn(60_000, dtype=torch.float64)
    first /= first.norm()
    other = torch.randn_like(first)
    other -= (other @ first) * first
    other /= other.norm()
    second = ratio * (math.cos(apart) * first + math.sin(apart) * other)
    # Float32 is summed in runs of so many numbers. What a length is off turns the sum of two directions by
    # the tangent of half their angle, and stretches it by their sum's shortness.
    for dtype, error in (("float64", EXACT), ("float32", likely(8192))):
        models = [{"w": v.to(getattr(torch, dtype))} for v in (first, second)]
        merged = merge_state_dicts(models, chain("multi_slerp"), dtype=dtype)["w"].double()
        stretched = error / math.cos(apart / 2)
        assert merged.norm().item() == pytest.approx((1 + ratio) / 2, rel=stretched)
        for end in (first, second):
            turned = error * math.tan(apart / 2)
            assert angle(merged, end) == pytest.approx(apart / 2, rel=0, abs=turned)


@pytest.mark.parametrize("name", ["slerp", "nuslerp", "multi_slerp", "karcher"])
@pytest.mark.parametrize("second", [[-1.0, -2.0, 0.5], [-1e-4, -2e-4, 0.5e-4]])
def test_opposite_models_meet_in_the_weighted_mean(name: str, second: list[float]) -> None:
    first = [1.0, 2.0, -0.5]
    merged = merge_one(chain(name), [first, second])
    straight = merge_one(chain("linear"), [first, second])
    torch.testing.assert_close(merged, straight)


@pytest.mark.parametrize("name", ["multi_slerp", "karcher"])
def test_numbers_that_nearly_cancel_have_one_mean_in_any_order(name: str) -> None:
    """The directions of numbers are 1 and -1: all are that of the mean, or opposite to it."""
    models, weights = [-1.15, 1.45, 0.61, -0.79, 0.6], (1.36, 0.45, 1.38, 1.39, 0.91)
    length = sum(w * abs(m) for w, m in zip(weights, models, strict=True)) / sum(weights)
    merged = merge_one(chain(name), models, weights=weights)
    # The negative ones have weights of 2.75, the others of 2.74.
    assert float(merged) == exactly(-length)
    turned = merge_one(chain(name), models[::-1], weights=weights[::-1])
    assert float(turned) == exactly(-length)


WALKS = ["slerp", "nuslerp", "sequential_slerp"]


def nearly_opposite(short: float) -> list[list[float]]:
    """Two vectors of length 1, so much less than half a turn apart."""
    return [[1.0, 0.0], [math.cos(math.pi - short), math.sin(math.pi - short)]]


@pytest.mark.parametrize("name", WALKS)
@pytest.mark.parametrize("short", [0.05, 2e-3])
def test_nearly_opposite_directions_still_have_a_great_circle(name: str, short: float) -> None:
    """Halfway lies at half the angle and is as long as either, where the straight mean nearly vanishes."""
    merged = merge_one(chain(name), nearly_opposite(short))
    half = (math.pi - short) / 2
    expected = torch.tensor([math.cos(half), math.sin(half)], dtype=torch.float64)
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", WALKS)
def test_from_a_thousandth_on_directions_count_as_opposite(name: str) -> None:
    merged = merge_one(chain(name), nearly_opposite(5e-4))
    expected = torch.tensor(nearly_opposite(5e-4), dtype=torch.float64).mean(0)
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.7, -0.7)])
def test_weights_that_sum_to_nothing_meet_in_the_middle(weights: tuple[float, float]) -> None:
    models = [[1.0, 0.0], [0.0, 1.0]]
    merged = merge_one(chain("nuslerp"), models, weights=weights)
    middle = torch.full((2,), math.sqrt(0.5), dtype=torch.float64)
    torch.testing.assert_close(merged, middle, rtol=0, atol=1e-12)


def test_directions_that_cancel_out_are_reported() -> None:
    models = [torch.tensor([1.0, 2.0]).double(), torch.tensor([-3.0, -6.0]).double()]
    (block,) = blocks_of("w", models, None)
    stage = Karcher()
    found = stage.conclude(block, [stage.measure(block, [])])
    assert found["coefficients"].tolist() == [0.5, 0.5]
    assert "cancel out" in found["warning"]


def test_the_mean_length_is_kept_to_float32_precision() -> None:
    """Sums of squares of millions of float32 numbers are kept in runs, and the runs in float64."""
    torch.manual_seed(1)
    models = [{"w": torch.randn(4000, 1000) * 0.02} for _ in range(2)]
    ours = merge_state_dicts(models, chain("multi_slerp", mode="projected"))["w"].double().norm()
    exact = sum(m["w"].double().norm() for m in models) / 2
    # A length is a root, which halves relative errors, and those of runs are of either sign.
    runs = 4000 * 1000 / 8192
    assert float(abs(ours - exact) / exact) < likely(8192) / 2 / runs**0.5 + unit()
