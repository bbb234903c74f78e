"""The methods that work on changes, by hand: numbers worked out in float64, for any cut into blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from emberge_merge.methods.sparse.energy_weights import EnergyWeights
from emberge_merge.methods.sparse.trim_outliers import bounds_of
from torch import Tensor

from tests.support.chains import EVERYTHING, blocks_of, chain, keep_probability, merge_one

BASE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
DELTAS = [
    [[0.4, -0.2, 0.0], [0.1, -0.6, 0.3]],
    [[0.2, 0.3, -0.1], [-0.4, -0.25, 0.5]],
    [[-0.6, 0.15, 0.2], [0.25, 0.35, -0.1]],
]
WEIGHTS = (0.5, 0.3, 0.2)
ORIGIN = torch.tensor(BASE, dtype=torch.float64)
ZERO = torch.zeros(2, 3).tolist()


def models(count: int = 3) -> list[Tensor]:
    return [ORIGIN + torch.tensor(d, dtype=torch.float64) for d in DELTAS[:count]]


def close(found: Tensor | np.ndarray, expected: Any, tolerance: float = 6e-7) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(found), wanted, atol=tolerance, rtol=0)


# Name: (chain, options, how, expected); `how` may say models, weights, base.
WORKED: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any]] = {
    "E12": ("ties", {}, {}, [[1.325, 2.24, 3.2], [3.6, 4.53125, 6.375]]),
    "E13": ("ties", {"density": 0.5}, {}, [[1.4, 2.3, 3], [3.6, 4.4, 6.375]]),
    "E14": ("ties", {"density": 0.5}, {"weights": None}, [[0.4, 2.3, 3], [3.6, 4.4, 6.4]]),
    "E15": (
        "ties",
        {"density": 0.5, "normalize": False},
        {},
        [[1.2, 2.09, 3], [3.88, 4.7, 6.3]],
    ),
    "E16": (
        "breadcrumbs",
        {"density": 0.5, "gamma": 0.2},
        {},
        [[1.2, 1.99, 3.04], [3.93, 4.995, 6.15]],
    ),
    "E17": (
        "breadcrumbs_ties",
        {"density": 0.5, "gamma": 0.2},
        {},
        [[1.2, 1.9, 3.04], [3.88, 4.925, 6.15]],
    ),
    "E18": ("sce", {}, {}, [[0.4, 2.224695, 3.2], [3.6, 4.568468, 6.396267]]),
    "E19": ("sce", {"select_topk": 0.5}, {}, [[0.4, 2, 3], [3.6, 4.515931, 6]]),
    "E28": ("sce_unanimous", {}, {}, BASE),
}
# Here the weighted changes of [0, 0] cancel, 0.4 + 0.2 - 0.6, and rounding elects the sign.
UNDECIDED = ("E18", "E19")


@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("case", WORKED)
def test_the_worked_example(case: str, rows: int) -> None:
    name, options, how, expected = WORKED[case]
    weights = how.get("weights", WEIGHTS)
    found = merge_one(
        chain(name, **options), models(how.get("models", 3)), BASE, weights=weights, rows=rows
    )
    if case in UNDECIDED:
        found, expected = found.flatten()[1:], [v for line in expected for v in line][1:]
    close(found, expected)


# Changes from zero: (chain, options, how many of DELTAS, weights, expected change)
CHANGES: dict[str, tuple[str, dict[str, Any], int, Any, Any]] = {
    "A9 sce_unanimous": (
        "sce_unanimous",
        {},
        2,
        (0.6, 0.4),
        [[0.32, 0, 0], [0, -0.46, 0.38]],
    ),
    "A9 sce": ("sce", {}, 2, None, [[0.303733, 0.3, -0.1], [-0.4, -0.431532, 0.396267]]),
    "A9 sce, half": (
        "sce",
        {"select_topk": 0.5},
        2,
        None,
        [[0, 0.3, 0], [-0.4, -0.448616, 0]],
    ),
    "E27": ("ties", {}, 2, (0.6, 0.4), [[0.32, 0.3, -0.1], [-0.4, -0.46, 0.38]]),
    "E30 iso_c": (
        "iso_c",
        {},
        2,
        None,
        [[0.883613, -0.062467, 0.049359], [-0.079328, -0.644235, 0.604796]],
    ),
    "E30 tsv_m": (
        "tsv_m",
        {},
        2,
        None,
        [[0.665147, -0.261474, -0.205891], [-0.112875, -0.578866, 0.453142]],
    ),
    "E30 wudi": (
        "wudi",
        {},
        2,
        None,
        [[0.611128, -0.039253, 0.095592], [0.110954, -0.39697, 0.810126]],
    ),
}


@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("case", CHANGES)
def test_the_worked_changes(case: str, rows: int) -> None:
    name, options, count, weights, expected = CHANGES[case]
    links = chain(name, **options)
    if any(link.whole for link in links):
        rows = EVERYTHING
    found = merge_one(links, DELTAS[:count], ZERO, weights=weights, rows=rows)
    if case == "E27":
        # -0.6 · 0.2 + 0.4 · 0.3 at [0, 1] is a tie in decimals, elected by rounding.
        found, expected = found.flatten()[[0, 2, 3, 4, 5]], [0.32, -0.1, -0.4, -0.46, 0.38]
    close(found, expected)


@pytest.mark.parametrize("case", [case for case in CHANGES if case != "E27"])
def test_the_worked_changes_are_those_from_any_base(case: str) -> None:
    name, options, count, weights, expected = CHANGES[case]
    base = torch.tensor([[4.0, -2.0, 1.0], [-8.0, 2.0, 4.0]], dtype=torch.float64)
    moved = base + torch.tensor(DELTAS[:count], dtype=torch.float64)
    found = merge_one(chain(name, **options), moved, base, weights=weights)
    close(found - base, expected)


def test_those_that_agree_may_be_averaged_plainly() -> None:
    """The TIES paper's mean; by hand from T-E12, whose elections it shares."""
    found = merge_one(chain("ties", consensus_mean="count"), models(), BASE, weights=WEIGHTS)
    close(found, [[1.3, 2.225, 3.2], [3.6, 4.575, 6.4]])
    equal = {"weights": (1.0, 1.0, 1.0)}
    close(
        merge_one(chain("ties", density=0.5, consensus_mean="count"), models(), BASE, **equal),
        merge_one(chain("ties", density=0.5), models(), BASE, **equal),
    )


def test_energy_weights_are_shares_of_mean_squares() -> None:  # T-E18
    (block,) = blocks_of("w", models(), ORIGIN)
    stage = EnergyWeights()
    weights = stage.apply(block, [stage.measure(block, [])]).weights
    close(weights, [0.349206, 0.324074, 0.326720])


def test_what_is_kept_at_random_goes_by_rank() -> None:  # T-E26
    found = keep_probability(torch.tensor(DELTAS[0], dtype=torch.float64), 0.5, 0.15)
    close(found, [[0.65, 0.5, 0.35], [0.35, 0.65, 0.5]])


def test_wudi_disturbs_least() -> None:  # T-E30
    deltas = torch.tensor(DELTAS[:2], dtype=torch.float64)

    def disturbed(change: Tensor) -> float:
        parts = [((change - d) @ d.mT).square().sum() / d.square().sum() for d in deltas]
        return float(sum(parts))

    best = merge_one(chain("wudi"), deltas, ZERO)
    assert disturbed(best) == pytest.approx(0.015505158, abs=1e-8)
    assert disturbed(deltas.sum(0)) == pytest.approx(0.365775, abs=1e-6)
    assert disturbed(deltas.mean(0)) == pytest.approx(0.129524, abs=1e-6)
    torch.manual_seed(0)
    for _ in range(20):
        assert disturbed(best + 0.01 * torch.randn_like(best)) > disturbed(best)


def test_iso_c_has_one_singular_value() -> None:  # T-E30
    merged = merge_one(chain("iso_c"), DELTAS[:2], ZERO)
    close(torch.linalg.svdvals(torch.tensor(DELTAS[:2]).double().sum(0)), [1.246553, 0.527832])
    close(torch.linalg.svdvals(merged), [0.887192, 0.887192])


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
def test_outliers_go_and_so_many_stay(
    density: float, gamma: float, total: int, upper: int, outliers: int
) -> None:
    assert bounds_of(density, gamma, total) == (upper, outliers)


def test_rescaling_restores_the_sum_of_magnitudes() -> None:
    links = chain("breadcrumbs", density=0.5, gamma=0.2, rescale_mode="l1")
    delta = torch.tensor(DELTAS[0], dtype=torch.float64)
    found = merge_one(links, [delta], ZERO)
    assert found.abs().sum().item() == pytest.approx(delta.abs().sum().item())
    assert int((found != 0).sum()) == 3
