"""Methods that draw: right on average, exact for a seed, and the same however the work is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from emberge import CheckpointError, Stage
from emberge_merge.methods.sparse.ranked_draw import list_chances
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.chains import chain, keep_probability, merge_one
from tests.support.merge_in_memory import merge_state_dicts

DRAWS = 2000
DRAWING = ("dare_linear", "dare_ties", "della", "della_linear")
DELTAS = [
    [[0.4, -0.2, 0.0], [0.1, -0.6, 0.3]],
    [[0.2, 0.3, -0.1], [-0.4, -0.25, 0.5]],
    [[-0.6, 0.15, 0.2], [0.25, 0.35, -0.1]],
]
ZERO = torch.zeros(2, 3).tolist()
WEIGHTS = (0.5, 0.3, 0.2)


def drawn(name: str, deltas: Sequence[Any], times: int = DRAWS, **options: Any) -> Tensor:
    """Merged changes that were drawn so many times, as the rows of one tall matrix: [times, *rows]."""
    models = [torch.as_tensor(delta, dtype=torch.float64) for delta in deltas]
    tall = [model.view(-1, model.shape[-1]).repeat(times, 1) for model in models]
    weights = WEIGHTS[: len(deltas)]
    merged = merge_one(chain(name, **options), tall, torch.zeros_like(tall[0]), weights=weights)
    return merged.view(times, *models[0].shape)


def arithmetic(deltas: Sequence[Any]) -> Tensor:
    weights = WEIGHTS[: len(deltas)]
    zero = torch.zeros_like(torch.as_tensor(deltas[0])).tolist()
    return merge_one(chain("task_arithmetic"), deltas, zero, weights=weights)


def hold_mean(samples: Tensor, expected: Tensor) -> None:
    """The mean lies within five of its own standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    off = (samples.mean(0) - expected).abs()
    assert bool((off <= 5 * error + 1e-12).all()), f"{off / error}"


@pytest.mark.parametrize("name", ["dare_linear", "della_linear"])
def test_dividing_by_the_density_gives_task_arithmetic_on_average(name: str) -> None:
    samples = drawn(name, DELTAS, density=0.5, rescale_mode="inverse_density")
    hold_mean(samples, arithmetic(DELTAS))
    assert float(samples.std(0).max()) > 0.1


def test_every_element_is_kept_as_often_as_its_rank_says() -> None:  # T-E26
    samples = drawn("della_linear", [DELTAS[0]], density=0.5, rescale_mode="none")
    often = (samples != 0).double().mean(0)
    expected = torch.tensor([[0.65, 0.5, 0.0], [0.35, 0.65, 0.5]], dtype=torch.float64)
    # [0, 2] is kept at 0.35 as well, and is zero either way.
    assert float((often - expected).abs().max()) < 5 * math.sqrt(0.25 / DRAWS)


SHAPES = {"layers.0.weight": (37, 21), "layers.0.bias": (19,), "one": (6, 1), "scale": ()}


def states(seed: int = 1) -> list[dict[str, Tensor]]:
    torch.manual_seed(seed)
    base = {n: torch.randn(s) for n, s in SHAPES.items()}
    return [base, *({n: t + 0.1 * torch.randn(t.shape) for n, t in base.items()} for _ in range(3))]


def links_of(name: str, **options: Any) -> tuple[Stage, ...]:
    return chain(name, **{"density": 0.5, **options})


@pytest.mark.parametrize("rescale_mode", ["l1", "inverse_density", "none"])
@pytest.mark.parametrize("name", DRAWING)
def test_a_seed_decides_every_draw(name: str, rescale_mode: str) -> None:
    base, *models = states()
    links = links_of(name, rescale_mode=rescale_mode)
    first, again, other = (
        merge_state_dicts(models, links, base, WEIGHTS, seed=seed, **how)
        for seed, how in ((7, {}), (7, {"block": 50, "workers": 3}), (8, {}))
    )
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


@pytest.mark.parametrize("name", DRAWING)
def test_a_density_of_zero_leaves_the_base(name: str) -> None:
    base, *models = states()
    found = merge_state_dicts(models, chain(name, density=0.0), base, WEIGHTS)
    assert all(torch.equal(found[n], base[n]) for n in base)


def test_each_kept_delta_is_divided_by_its_own_probability() -> None:
    """At 0.05 a kept element counts 20 times; DELLA's of a row at density 0.2 are 0.05, 0.2 and 0.35."""
    ones = torch.ones(4000).tolist()
    dare = {"density": 0.05, "rescale_mode": "inverse_density"}
    found = merge_one(chain("dare_linear", **dare), [ones], [0.0] * 4000)
    assert found.unique().tolist() == pytest.approx([0.0, 20.0])

    row = [[1.0, 2.0, 3.0]]
    della = {"density": 0.2, "epsilon": 0.15, "rescale_mode": "inverse_density"}
    samples = drawn("della_linear", [row], times=200, **della) / WEIGHTS[0]
    most = samples.amax(0)[0]
    assert most.tolist() == pytest.approx([1 / 0.05, 2 / 0.2, 3 / 0.35])


def test_epsilon_that_leaves_probabilities_is_an_error_that_names_the_tensor() -> None:
    base, *models = states()
    with pytest.raises(CheckpointError, match=r"layers.0.*: density 0.9 ± epsilon 0.15 must stay"):
        merge_state_dicts(models, chain("della", density=0.9), base)


def test_a_row_of_one_element_is_kept_by_density() -> None:
    """mergekit divides by zero there: its rank has no span."""
    alone = keep_probability(torch.tensor([[0.3], [0.1]]), 0.4, 0.1)
    torch.testing.assert_close(alone, torch.full((2, 1), 0.4))
    assert keep_probability(torch.tensor(0.3), 0.4, 0.1).item() == pytest.approx(0.4)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    few=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_ranks_are_those_of_a_stable_sort(
    rows: int, width: int, seed: int, few: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator, dtype=dtype).abs()
    if few:
        values = (values * 3).round()  # many ties, and zeros
    expected = values.argsort(dim=1, stable=True).argsort(dim=1)
    ranks = list_chances(values[None], [(0.0, 1.0)], width)[0]
    assert torch.equal(ranks, expected.to(dtype))
