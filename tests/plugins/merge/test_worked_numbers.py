"""The strategies by hand: numbers worked out in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from emberge import PerModel, PerTensor, Stage
from emberge.merging import merge_state_dicts
from emberge_merge.methods.averages.linear import Linear
from emberge_merge.methods.averages.passthrough import Passthrough
from emberge_merge.methods.averages.task_arithmetic import TaskArithmetic
from emberge_merge.methods.sparse.sign_consensus import SignConsensus
from emberge_merge.methods.sparse.trim import Trim
from emberge_merge.methods.spherical.karcher import Karcher
from emberge_merge.methods.spherical.model_stock import ModelStock
from emberge_merge.methods.spherical.multi_slerp import MultiSlerp
from emberge_merge.methods.spherical.nuslerp import Nuslerp
from emberge_merge.methods.spherical.sequential_slerp import SequentialSlerp
from emberge_merge.methods.spherical.slerp import Slerp
from torch import Tensor

from tests.support.chains import blocks_of
from tests.support.tolerance import near

BASE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
DELTAS = [
    [[0.4, -0.2, 0.0], [0.1, -0.6, 0.3]],
    [[0.2, 0.3, -0.1], [-0.4, -0.25, 0.5]],
    [[-0.6, 0.15, 0.2], [0.25, 0.35, -0.1]],
]
WEIGHTS = (0.5, 0.3, 0.2)


def merge(
    vectors: Sequence[Any],
    *strategy: Stage,
    base: Any = None,
    weights: Sequence[float] | None = None,
    **settings: Any,
) -> Tensor:
    models = [{"w": torch.tensor(v, dtype=torch.float64)} for v in vectors]
    origin = None if base is None else {"w": torch.tensor(base, dtype=torch.float64)}
    return merge_state_dicts(models, strategy, origin, weights, dtype="float64", **settings)["w"]


def worked(
    *strategy: Stage,
    models: int = 3,
    base: bool = True,
    weights: Sequence[float] | None = WEIGHTS,
    **settings: Any,
) -> Tensor:
    origin = torch.tensor(BASE, dtype=torch.float64)
    vectors = [(origin + torch.tensor(d, dtype=torch.float64)).tolist() for d in DELTAS[:models]]
    given = None if weights is None else weights[:models]
    return merge(vectors, *strategy, base=BASE if base else None, weights=given, **settings)


def close(found: Tensor, expected: Any, tolerance: float = 6e-7) -> None:
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=0
    )


@pytest.mark.parametrize("t", [0.25, 0.5])
def test_slerp_of_a_right_angle(t: float) -> None:  # T-A4
    expected = {0.25: [0.9238795, 0.7653669], 0.5: [0.7071068, 1.4142136]}[t]
    close(merge([[1.0, 0.0], [0.0, 2.0]], Slerp(t=PerTensor(t))), expected)


def test_slerp_in_turn_depends_on_the_order() -> None:  # T-A5
    vectors = [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]

    def in_turn(order: Sequence[int]) -> Tensor:
        held, size = torch.tensor(vectors[order[0]], dtype=torch.float64), order[0] + 1
        for j in order[1:]:
            size += j + 1
            share = PerTensor((j + 1) / size)
            held = merge([held.tolist(), vectors[j]], Slerp(t=share))
        return held

    close(in_turn([0, 1, 2]), [1.0606602, 0.6123724, 1.4142136])
    close(in_turn([2, 1, 0]), [0.7764571, 0.5677570, 1.5629008])
    close(merge(vectors, SequentialSlerp(), weights=(1, 2, 3)), [1.0606602, 0.6123724, 1.4142136])
    turned = merge(vectors[::-1], SequentialSlerp(), weights=(3, 2, 1))
    close(turned, [0.7764571, 0.5677570, 1.5629008])


def test_slerp_in_turn_goes_by_shares_of_what_came_before() -> None:
    vectors = [[3.0, 0.0, 1.0], [0.0, 1.0, 0.5], [0.2, 0.0, 2.0]]
    half = merge(vectors[:2], Slerp(t=PerTensor(1 / 2)))
    third = merge([half.tolist(), vectors[2]], Slerp(t=PerTensor(1 / 3)))
    close(merge(vectors, SequentialSlerp()), third.tolist(), 1e-9)
    close(merge(vectors, SequentialSlerp(), weights=(5, 5, 5)), third.tolist(), 1e-9)
    # Models without a weight are passed by, wherever they stand.
    close(merge(vectors, SequentialSlerp(), weights=(0, 0, 2)), vectors[2])
    close(merge(vectors, SequentialSlerp(), weights=(0, 3, 0)), vectors[1])
    two = merge(vectors[1:], Slerp(t=PerTensor(3 / 4)))
    close(merge(vectors, SequentialSlerp(), weights=(0, 1, 3)), two.tolist(), 1e-9)


def test_multi_slerp_of_a_right_angle() -> None:  # T-A6
    vectors = [[1.0, 0.0], [0.0, 1.0]]
    weights = (0.75, 0.25)
    close(merge(vectors, MultiSlerp(), weights=weights), [0.9238795, 0.3826834])
    projected = merge(vectors, MultiSlerp(mode="projected"), weights=weights)
    close(projected, [0.9486833, 0.3162278])


def test_multi_slerp_of_three_axes() -> None:  # T-A7
    vectors = [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]
    weights = (1 / 6, 2 / 6, 3 / 6)
    expected = {
        "log": [0.5576230, 1.0187297, 1.4185759],
        "projected": [0.4899789, 0.9799579, 1.4699368],
    }
    for mode, numbers in expected.items():
        close(merge(vectors, MultiSlerp(mode=mode), weights=weights), numbers)  # type: ignore[arg-type]
    close(merge(vectors, Karcher(), weights=weights), [0.5717679, 1.0224150, 1.4102695])
    close(merge(vectors, Linear(), weights=weights), [0.5, 0.3333333, 1.0], 5e-8)
    assert merge(vectors, MultiSlerp(), weights=weights).norm().item() == pytest.approx(11 / 6)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_multi_slerp_of_two_is_slerp_of_directions(share: float) -> None:
    vectors = [[3.0, 1.0, -2.0], [0.5, 2.0, 1.0]]
    units = [(torch.tensor(v) / torch.tensor(v).norm()).double() for v in vectors]
    norms = [math.hypot(*v) for v in vectors]
    weights = (1 - share, share)
    expected = merge([u.tolist() for u in units], Slerp(t=PerTensor(share)))
    length = sum(w * n for w, n in zip(weights, norms, strict=True))
    close(merge(vectors, MultiSlerp(), weights=weights), (expected * length).tolist())
    projected = merge(vectors, MultiSlerp(mode="projected"), weights=weights)
    assert share == 0.5 or not torch.allclose(projected, expected * length, atol=1e-3)


def test_multi_slerp_of_deltas_inflates_what_linear_shrinks() -> None:  # T-A8
    torch.manual_seed(0)
    deltas = torch.randn(4, 20_000, dtype=torch.float64)
    deltas = deltas / deltas.norm(dim=1, keepdim=True)
    weights = (0.4, 0.3, 0.2, 0.1)
    zero = torch.zeros(20_000).tolist()
    inflated = merge(
        deltas.tolist(),
        MultiSlerp(mode="projected", space="deltas"),
        base=zero,
        weights=weights,
    ).norm()
    plain = merge(deltas.tolist(), Linear(), weights=weights).norm()
    assert (inflated / plain).item() == pytest.approx(1.8257, abs=0.02)


def test_model_stock_at_sixty_degrees() -> None:  # T-A10
    vectors = [[1.0, 0.0], [0.5, math.sqrt(3) / 2]]
    close(merge(vectors, ModelStock(), base=[0.0, 0.0]), [0.5, 0.2886751])


def test_model_stock_reports_its_ratio() -> None:
    """At sixty degrees c = 1/2 and t = 2/3."""
    models = [torch.tensor(v).double() for v in ([[1.0, 0.0]], [[0.5, math.sqrt(3) / 2]])]
    (block,) = blocks_of("w", models, torch.zeros(1, 2).double())
    stage = ModelStock()
    found = stage.conclude(block, [stage.measure(block, [])])["findings"]
    assert list(found.values()) == [pytest.approx(2 / 3)]


CASES: dict[str, tuple[tuple[Stage, ...], dict[str, Any], Any]] = {
    "E1 linear": ((Linear(),), {"base": False}, [[1.14, 2.02, 3.01], [3.98, 4.695, 6.28]]),
    "E1 task arithmetic": ((TaskArithmetic(),), {}, [[1.14, 2.02, 3.01], [3.98, 4.695, 6.28]]),
    "E2": (
        (Linear(normalize=False),),
        {"base": False, "weights": (1, 1, 1)},
        [[3, 6.25, 9.1], [11.95, 14.5, 18.7]],
    ),
    "E3 slerp": (
        (Slerp(t=PerTensor(0.3)),),
        {"base": False, "models": 2},
        [[1.341042, 1.9516, 2.972346], [3.953081, 4.508611, 6.365067]],
    ),
    "E3 nuslerp": (
        (Nuslerp(),),
        {"base": False, "models": 2, "weights": (0.7, 0.3)},
        [[1.341042, 1.9516, 2.972346], [3.953081, 4.508611, 6.365067]],
    ),
    "E4": (
        (Nuslerp(),),
        {"models": 2, "weights": (0.7, 0.3)},
        [[1.386557, 1.952958, 2.963441], [3.932123, 4.438444, 6.417875]],
    ),
    "E7": (
        (MultiSlerp(mode="projected"),),
        {"base": False},
        [[1.147661, 2.022809, 3.016693], [3.989824, 4.701898, 6.297207]],
    ),
    "E8": (
        (MultiSlerp(mode="projected", space="deltas"),),
        {},
        [[1.249899, 2.044186, 3.018463], [3.958645, 4.447699, 6.515321]],
    ),
    "E9": (
        (Karcher(),),
        {"base": False, "weights": None},
        [[1.008736, 2.087659, 3.041229], [3.994267, 4.842378, 6.25435]],
    ),
    "E10": (
        (TaskArithmetic(scale=PerTensor(0.4)),),
        {"weights": None},
        [[1, 2.1, 3.04], [3.98, 4.8, 6.28]],
    ),
    "E11": (
        (TaskArithmetic(normalize=True),),
        {"weights": None},
        [[1, 2.083333, 3.033333], [3.983333, 4.833333, 6.233333]],
    ),
    "E12": (
        (Trim(density=PerModel(1.0)), SignConsensus()),
        {},
        [[1.325, 2.24, 3.2], [3.6, 4.53125, 6.375]],
    ),
    "E13": ((Trim(), SignConsensus()), {}, [[1.4, 2.3, 3], [3.6, 4.4, 6.375]]),
    "E14": ((Trim(), SignConsensus()), {"weights": None}, [[0.4, 2.3, 3], [3.6, 4.4, 6.4]]),
    "E15": (
        (Trim(), SignConsensus(normalize=False)),
        {},
        [[1.2, 2.09, 3], [3.88, 4.7, 6.3]],
    ),
    "E20 raw": (
        (ModelStock(clamp=False),),
        {},
        [[1, 1.832038, 2.932815], [4.033592, 5.335924, 5.529706]],
    ),
    "E20 clamped": ((ModelStock(),), {}, BASE),
    "E25": (
        (Passthrough(scale=PerTensor(0.5)),),
        {"base": False, "models": 1},
        [[0.7, 0.9, 1.5], [2.05, 2.2, 3.15]],
    ),
}


@pytest.mark.parametrize("granule", [1, 1 << 18], ids=["one row", "everything"])
@pytest.mark.parametrize("case", CASES)
def test_the_worked_example(case: str, granule: int) -> None:
    strategy, how, expected = CASES[case]
    close(worked(*strategy, granule=granule, block=granule, **how), expected)


def test_models_that_cancel_out_elect_plus() -> None:  # T-E27
    strategy = (Trim(density=PerModel(1.0)), SignConsensus())
    found = merge(DELTAS[:2], *strategy, base=torch.zeros(2, 3).tolist(), weights=(0.6, 0.4))
    # At [0, 1] the weighted changes cancel in decimals, and rounding may decide.
    close(found.flatten()[[0, 2, 3, 4, 5]], [0.32, -0.1, -0.4, -0.46, 0.38])
    tie = merge([[-0.5, 1.0], [0.5, 1.0]], *strategy, base=[0.0, 0.0])
    close(tie, [0.5, 1.0])


def test_weights_that_sum_to_one_make_task_arithmetic_the_mean() -> None:
    torch.testing.assert_close(worked(TaskArithmetic()), worked(Linear(), base=False))


def test_an_angle_below_float32_cosines_is_still_an_angle() -> None:  # T-00
    torch.manual_seed(0)
    first = torch.randn(1_000_000)
    turned = first + 0.00141278 * torch.randn(1_000_000)
    # Opposite ways off the great circle's chord, at half an angle, as a multiple of the rounding.
    models = [{"w": first}, {"w": turned}]
    exact = [m["w"].double() for m in models]
    angle = 2 * torch.atan2(
        (exact[0] / exact[0].norm() - exact[1] / exact[1].norm()).norm(),
        (exact[0] / exact[0].norm() + exact[1] / exact[1].norm()).norm(),
    )
    assert angle.item() == pytest.approx(0.0014128, rel=0.01)
    from emberge.merging.streaming.build_jobs import build_empty_block
    from emberge_merge.methods.spherical.angles import Span, slerp_coefficients

    block = build_empty_block(
        "w", (1_000_000,), models=["a", "b"], weights=[1, 1], dtype="float32", based=False
    ).with_tensors(torch.stack([first, turned]))
    span = Span.of(*(Slerp().measure(block, [])[k] for k in ("products", "differences")))
    # Products are summed in float32 over runs of so many numbers.
    assert span.norms[0] == near(exact[0].norm().item(), addends=8192)
    (first_share, _), _ = slerp_coefficients(span, 0.5)
    # sin(θ/2) / sin θ = 1 / (2 cos(θ/2)): the angle read back from the coefficient.
    read = 2 * math.acos(1 / (2 * float(first_share)))
    assert read == near(angle.item(), addends=8192)
