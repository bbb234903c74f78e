"""Trimming keeps exactly k, in the tensor's order among equals, however it is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from emberge import Block, MergeStrategy, PerModel, Stats
from emberge.contracts.stage import BasePolicy
from emberge.merging import merge_state_dicts
from emberge_merge.methods.sparse.trim import Trim
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


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


@pytest.mark.parametrize("density", [0.0, 1e-6, 0.2, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("kind", KINDS)
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
    monkeypatch.setattr("emberge_merge.methods.ranking._SAMPLE", size)
    monkeypatch.setattr("emberge_merge.methods.cut._SLACK", 0.0)
    monkeypatch.setattr("emberge_merge.methods.cut._MANY", size * 2)
    delta = make(kind, (60, 50), seed=size)
    for density in (0.01, 0.3, 0.5, 0.9):
        found = trimmed(delta, density, granule=400)
        assert torch.equal(found, sorted_out(delta, density))


@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_trimmed_exactly_too(kind: str) -> None:
    delta = make(kind, (400, 300)).double() * (1 + 1e-12)
    found = trimmed(delta, 0.4, dtype="float64", granule=10_000)
    assert torch.equal(found, sorted_out(delta, 0.4))


def test_every_model_has_its_own_density() -> None:
    delta = make("normal", (40, 40))
    models = [{"w": delta}, {"w": delta}]
    links = [Trim(density=PerModel(0.5)), Second()]
    own = [{}, {"trim": {"density": PerModel(0.1)}}]
    found = merge_state_dicts(models, links, {"w": torch.zeros_like(delta)}, options=own)["w"]
    assert int((found != 0).sum()) == 160


PARTS = {
    "embeddings.weight": (300, 40),
    "layers.0.weight": (50, 41),
    "layers.0.bias": (41,),
    "layers.1.weight": (50, 41),
    "scale": (),
}
SCOPES = {
    "model": [list(PARTS)],
    "layer": [
        ["embeddings.weight"],
        ["layers.0.weight", "layers.0.bias"],
        ["layers.1.weight"],
        ["scale"],
    ],
}


@pytest.mark.parametrize("density", [0.0, 0.001, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["normal", "rounded", "sparse"])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_wider_scope_ranks_tensors_laid_end_to_end(scope: str, kind: str, density: float) -> None:
    changes = {
        name: make(kind, shape, seed) * (1 + seed)
        for seed, (name, shape) in enumerate(PARTS.items())
    }
    expected: dict[str, Tensor] = {}
    for names in SCOPES[scope]:
        whole = sorted_out(torch.cat([changes[n].reshape(-1) for n in names]), density)
        parts = whole.split([changes[n].numel() for n in names])
        expected |= {n: p.reshape(PARTS[n]) for n, p in zip(names, parts, strict=True)}
    others = {n: torch.ones(s) for n, s in PARTS.items()}
    base = {n: torch.zeros(s) for n, s in PARTS.items()}
    links = [Trim(density=PerModel(density), trim_scope=scope), Second()]  # type: ignore[arg-type]
    for how in ({}, {"granule": 410, "block": 820, "workers": 3}):
        found = merge_state_dicts([others, changes], links, base, **how)
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name


def test_tensors_ranked_together_have_one_density() -> None:
    with pytest.raises(ValueError, match="one density for all"):
        Trim(density=PerModel([0.2, 0.8]), trim_scope="model")
