"""The strategies by hand: numbers worked out in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from emberge import PerTensor, Stage
from emberge_merge.methods.sparse.trim import compute_bounds
from emberge_merge.methods.spherical.mean_directions import Karcher, MultiSlerp
from emberge_merge.methods.spherical.model_stock import ModelStock
from emberge_merge.methods.spherical.slerp import SequentialSlerp, Slerp
from emberge_merge.methods.weighted_sums import Linear
from torch import Tensor

from tests.support.chains import blocks_of, chain, merge_one
from tests.support.merge_in_memory import merge_state_dicts

BASE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
DELTAS = [
    [[0.4, -0.2, 0.0], [0.1, -0.6, 0.3]],
    [[0.2, 0.3, -0.1], [-0.4, -0.25, 0.5]],
    [[-0.6, 0.15, 0.2], [0.25, 0.35, -0.1]],
]
WEIGHTS = (0.5, 0.3, 0.2)
ORIGIN = torch.tensor(BASE, dtype=torch.float64)
ZERO = torch.zeros(2, 3).tolist()


def merge(
    vectors: Sequence[Any],
    *strategy: Stage,
    base: Any = None,
    weights: Sequence[float] | None = None,
    **settings: Any,
) -> Tensor:
    models = [{"w": torch.as_tensor(v, dtype=torch.float64)} for v in vectors]
    origin = None if base is None else {"w": torch.as_tensor(base, dtype=torch.float64)}
    return merge_state_dicts(models, strategy, origin, weights, dtype="float64", **settings)["w"]


def models_from(base: Any, count: int = 3) -> list[Tensor]:
    origin = torch.as_tensor(base, dtype=torch.float64)
    return [origin + torch.tensor(delta, dtype=torch.float64) for delta in DELTAS[:count]]


def close(found: Tensor | np.ndarray, expected: Any, tolerance: float = 6e-7) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(found), wanted, atol=tolerance, rtol=0)


Case = tuple[str, Mapping[str, Any], list[float], Tensor]


def read_cases(text: str) -> dict[str, Case]:
    """Return cases by name, from lines of name | chain and its options | weights | expected rows."""
    found = {}
    for line in text.strip().splitlines():
        name, method, weights, expected = line.split(" | ")
        method, _, options = method.partition(" ")
        rows = torch.tensor([float(word) for word in expected.split()], dtype=torch.float64)
        shares = [float(word) for word in weights.split()]
        found[name] = method, yaml.safe_load(options) or {}, shares, rows.view(2, 3)
    return found


# What merging as many of BASE and DELTAS gives as there are weights.
PLAIN = read_cases("""
E1 | linear | 0.5 0.3 0.2 | 1.14 2.02 3.01 3.98 4.695 6.28
E2 | linear {normalize: false} | 1 1 1 | 3 6.25 9.1 11.95 14.5 18.7
E3 | slerp {t: 0.3} | 1 1 | 1.341042 1.9516 2.972346 3.953081 4.508611 6.365067
E3 nuslerp | nuslerp | 0.7 0.3 | 1.341042 1.9516 2.972346 3.953081 4.508611 6.365067
E7 | multi_slerp {mode: projected} | 0.5 0.3 0.2 | 1.147661 2.022809 3.016693 3.989824 4.701898 6.297207
E9 | karcher | 1 1 1 | 1.008736 2.087659 3.041229 3.994267 4.842378 6.25435
E25 | passthrough {scale: 0.5} | 1 | 0.7 0.9 1.5 2.05 2.2 3.15
""")
# The same with a base; the numbers are by how much the result differs from it.
BASED = read_cases("""
E1 | task_arithmetic | 0.5 0.3 0.2 | 0.14 0.02 0.01 -0.02 -0.305 0.28
E4 | nuslerp | 0.7 0.3 | 0.386557 -0.047042 -0.036559 -0.067877 -0.561556 0.417875
E8 | multi_slerp {mode: projected, space: deltas} | 0.5 0.3 0.2 | 0.249899 0.044186 0.018463 -0.041355 -0.552301 0.515321
E10 | task_arithmetic {scale: 0.4} | 1 1 1 | 0 0.1 0.04 -0.02 -0.2 0.28
E11 | task_arithmetic {normalize: true} | 1 1 1 | 0 0.083333 0.033333 -0.016667 -0.166667 0.233333
E12 | ties | 0.5 0.3 0.2 | 0.325 0.24 0.2 -0.4 -0.46875 0.375
E12 counted | ties {consensus_mean: count} | 0.5 0.3 0.2 | 0.3 0.225 0.2 -0.4 -0.425 0.4
E13 | ties {density: 0.5} | 0.5 0.3 0.2 | 0.4 0.3 0 -0.4 -0.6 0.375
E14 | ties {density: 0.5} | 1 1 1 | -0.6 0.3 0 -0.4 -0.6 0.4
E14 counted | ties {density: 0.5, consensus_mean: count} | 1 1 1 | -0.6 0.3 0 -0.4 -0.6 0.4
E15 | ties {density: 0.5, normalize: false} | 0.5 0.3 0.2 | 0.2 0.09 0 -0.12 -0.3 0.3
E16 | breadcrumbs {density: 0.5, gamma: 0.2} | 0.5 0.3 0.2 | 0.2 -0.01 0.04 -0.07 -0.005 0.15
E17 | breadcrumbs_ties {density: 0.5, gamma: 0.2} | 0.5 0.3 0.2 | 0.2 -0.1 0.04 -0.12 -0.075 0.15
E18 | sce | 0.5 0.3 0.2 | -0.6 0.224695 0.2 -0.4 -0.431532 0.396267
E19 | sce {select_topk: 0.5} | 0.5 0.3 0.2 | -0.6 0 0 -0.4 -0.484069 0
E20 | model_stock | 1 1 1 | 0 0 0 0 0 0
E20 raw | model_stock {clamp: false} | 1 1 1 | 0 -0.167962 -0.067185 0.033592 0.335924 -0.470294
E27 | ties | 0.6 0.4 | 0.32 0.3 -0.1 -0.4 -0.46 0.38
E28 | sce_unanimous | 0.5 0.3 0.2 | 0 0 0 0 0 0
A9 | sce_unanimous | 0.6 0.4 | 0.32 0 0 0 -0.46 0.38
A9 sce | sce | 1 1 | 0.303733 0.3 -0.1 -0.4 -0.431532 0.396267
A9 half | sce {select_topk: 0.5} | 1 1 | 0 0.3 0 -0.4 -0.448616 0
E30 iso_c | iso_c | 1 1 | 0.883613 -0.062467 0.049359 -0.079328 -0.644235 0.604796
E30 tsv_m | tsv_m | 1 1 | 0.665147 -0.261474 -0.205891 -0.112875 -0.578866 0.453142
E30 wudi | wudi | 1 1 | 0.611128 -0.039253 0.095592 0.110954 -0.39697 0.810126
""")  # noqa: E501 - a case is a line
# Where the weighted changes cancel in decimals, and rounding elects the sign: 0.4 + 0.2 - 0.6, 0.12 - 0.12.
UNDECIDED = {"E18": 0, "E19": 0, "E27": 1}


@pytest.mark.parametrize("granule", [1, 1 << 18], ids=["one row", "everything"])
@pytest.mark.parametrize("case", PLAIN)
def test_the_worked_example(case: str, granule: int) -> None:
    name, options, weights, expected = PLAIN[case]
    models, links = models_from(BASE, len(weights)), chain(name, **options)
    close(merge(models, *links, weights=weights, granule=granule, block=granule), expected)


@pytest.mark.parametrize("granule", [1, 1 << 18], ids=["one row", "everything"])
@pytest.mark.parametrize("case", BASED)
def test_the_worked_changes_are_those_from_any_base(case: str, granule: int) -> None:
    name, options, weights, expected = BASED[case]
    known = torch.arange(6).view(2, 3) != UNDECIDED.get(case, -1)
    for base in (BASE, ZERO, [[4.0, -2.0, 1.0], [-8.0, 2.0, 4.0]]):
        models, links = models_from(base, len(weights)), chain(name, **options)
        size = {"granule": granule, "block": granule}
        found = merge(models, *links, base=base, weights=weights, **size)
        close((found - torch.tensor(base, dtype=torch.float64))[known], expected[known])


@pytest.mark.parametrize("t", [0.25, 0.5])
def test_slerp_of_a_right_angle(t: float) -> None:  # T-A4
    expected = {0.25: [0.9238795, 0.7653669], 0.5: [0.7071068, 1.4142136]}[t]
    close(merge([[1.0, 0.0], [0.0, 2.0]], Slerp(t=PerTensor(t))), expected)


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


def test_model_stock_at_sixty_degrees() -> None:  # T-A10
    """There c = 1/2 and t = 2/3, which is reported."""
    vectors = [[1.0, 0.0], [0.5, math.sqrt(3) / 2]]
    close(merge(vectors, ModelStock(), base=[0.0, 0.0]), [0.5, 0.2886751])
    models = [torch.tensor([vector]).double() for vector in vectors]
    (block,) = blocks_of("w", models, torch.zeros(1, 2).double())
    found = ModelStock().conclude(block, [ModelStock().measure(block, [])])["findings"]
    assert list(found.values()) == [pytest.approx(2 / 3)]


def test_models_that_cancel_out_elect_plus() -> None:  # T-E27
    links = chain("ties", density=1.0)
    close(merge([[-0.5, 1.0], [0.5, 1.0]], *links, base=[0.0, 0.0]), [0.5, 1.0])


def test_tsv_m_of_more_models_than_triplets_is_the_sum() -> None:
    found = merge_one(chain("tsv_m"), DELTAS, ZERO)
    close(found, torch.tensor(DELTAS, dtype=torch.float64).sum(0))


def test_spectral_methods_take_the_mean_of_vectors() -> None:
    vectors = [[0.1, -0.4, 0.2], [0.3, 0.2, 0.0]]
    for name in ("iso_c", "tsv_m", "wudi"):
        close(merge_one(chain(name), vectors, [0.0, 0.0, 0.0]), [0.2, -0.1, 0.1])


@pytest.mark.parametrize(
    ("density", "gamma", "total", "upper", "outliers"),
    [
        (0.5, 0.2, 6, 4, 1),  # T-E16: one outlier, three stay
        (0.5, 0.01, 6, 3, 0),  # too few for an outlier: the largest half
        (0.9, 0.3, 10, 10, 1),  # fewer outliers go, so that nine stay
        (1.0, 0.5, 6, 6, 0),
        (0.0, 0.2, 6, 1, 1),
        (0.01, 0.2, 6, 2, 1),  # at least one stays
    ],
)
def test_trim_outliers_drops_outliers_and_keeps_the_density(
    density: float, gamma: float, total: int, upper: int, outliers: int
) -> None:
    assert compute_bounds(density, gamma, total) == (upper, outliers)


def test_rescaling_restores_the_sum_of_magnitudes() -> None:
    links = chain("breadcrumbs", density=0.5, gamma=0.2, rescale_mode="l1")
    delta = torch.tensor(DELTAS[0], dtype=torch.float64)
    found = merge_one(links, [delta], ZERO)
    assert found.abs().sum().item() == pytest.approx(delta.abs().sum().item())
    assert int((found != 0).sum()) == 3
