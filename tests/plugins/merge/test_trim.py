"""Trimming keeps exactly k, in the tensor's order among equals, however it is read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from emberge import Block, MergeStrategy, PerModel, Stats
from emberge.contracts.stage import BasePolicy
from emberge_merge.methods.sparse.trim import Trim
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.merge_in_memory import merge_state_dicts


@dataclass(frozen=True, kw_only=True)
class Second(MergeStrategy):
    """The last model's changes."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.deltas[-1]


def trimmed(delta: Tensor, density: float, **how: object) -> Tensor:
    """What is left of one model's changes from zero, a second model beside it."""
    models = [{"w": torch.ones_like(delta)}, {"w": delta}]
    base = {"w": torch.zeros_like(delta)}
    links = [Trim(density=PerModel(density)), Second()]
    return merge_state_dicts(models, links, base, **how)["w"]  # type: ignore[arg-type]


def sorted_out(delta: Tensor, density: float) -> Tensor:
    """The same by a stable sort."""
    flat = delta.reshape(-1).numpy()
    keep = max(1, int(density * len(flat))) if density > 0 else 0
    order = np.argsort(-np.abs(flat), kind="stable")[:keep]
    out = np.zeros_like(flat)
    out[order] = flat[order]
    return torch.from_numpy(out).reshape(delta.shape)


def make(kind: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    values = torch.randn(shape)
    if kind == "rounded":  # as bfloat16 siblings differ: few values, many of each
        return (values * 8).round() / 64
    if kind == "sparse":
        return values * (torch.rand(shape) < 0.03)
    if kind == "sorted":  # no sample of a part is like the whole
        return values.reshape(-1).sort().values.reshape(shape)
    if kind == "outliers":
        values[:, :3] *= 1e4
    return values


KINDS = ["normal", "rounded", "sparse", "sorted", "outliers"]


@pytest.mark.parametrize(
    ("kind", "density"),
    [*itertools.product(KINDS, (0.2, 0.97)), *(("rounded", d) for d in (0.0, 1e-6, 0.5, 1.0))],
)
def test_a_large_tensor_is_trimmed_as_by_a_sort(kind: str, density: float) -> None:
    delta = make(kind, (900, 400))
    expected = sorted_out(delta, density)
    assert torch.equal(trimmed(delta, density), expected)
    assert torch.equal(trimmed(delta, density, granule=30_000, block=7000, workers=2), expected)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 40),
    width=st.integers(4, 30),
    density=st.floats(0, 1),
    granule=st.integers(1, 500),
    seed=st.integers(0, 1000),
)
def test_any_small_tensor_is_trimmed_as_by_a_sort(
    kind: str, rows: int, width: int, density: float, granule: int, seed: int
) -> None:
    delta = make(kind, (rows, width), seed)
    assert torch.equal(
        trimmed(delta, density, granule=granule, block=granule), sorted_out(delta, density)
    )


@pytest.mark.parametrize("size", [8, 64, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bracket_that_misses_costs_passes_and_nothing_else(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tiny sample and few bins: every way through narrowing is gone.
    monkeypatch.setattr("emberge_merge.methods.sparse.ranking._SAMPLE_SIZE", size)
    monkeypatch.setattr("emberge_merge.methods.sparse.cut._SLACK", 0.0)
    monkeypatch.setattr("emberge_merge.methods.sparse.cut._SAMPLED_VALUES", size * 2)
    delta = make(kind, (60, 50), seed=size)
    for density in (0.01, 0.3, 0.5, 0.9):
        found = trimmed(delta, density, granule=400)
        assert torch.equal(found, sorted_out(delta, density))


@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_trimmed_exactly_too(kind: str) -> None:
    delta = make(kind, (400, 300)).double() * (1 + 1e-12)
    found = trimmed(delta, 0.4, dtype="float64", granule=10_000)
    assert torch.equal(found, sorted_out(delta, 0.4))
