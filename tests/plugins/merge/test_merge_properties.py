"""The laws of merging for any shapes, numbers, weights and cuts, by hypothesis, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from emberge import Stage
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.chains import EVERYTHING, merge
from tests.support.registered import CHAINS

State = Mapping[str, Tensor]
SHAPES = st.lists(
    st.one_of(
        st.just(()),
        st.tuples(st.integers(1, 7)),
        st.tuples(st.integers(1, 6), st.integers(1, 7)),
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=3,
)


@dataclass(frozen=True)
class Case:
    """Random models around a base; `frozen` of them did not move, and `zero` tensors are all zeros."""

    shapes: tuple[tuple[int, ...], ...]
    count: int
    seed: int
    noise: float
    frozen: int
    zero: bool
    weights: tuple[float, ...]

    def states(self) -> tuple[State, list[State]]:
        generator = torch.Generator().manual_seed(self.seed)

        def some(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        base = {f"layers.{i}.w": some(s) * (not self.zero) for i, s in enumerate(self.shapes)}
        models = [
            {n: t + (i >= self.frozen) * self.noise * some(tuple(t.shape)) for n, t in base.items()}
            for i in range(self.count)
        ]
        return base, models


def cases(links: Sequence[Stage]) -> st.SearchStrategy[Case]:
    least, most = links[0].arity.start, min(links[0].arity.stop - 1, 5)
    counts = st.integers(max(1, least), most)
    return counts.flatmap(
        lambda count: st.builds(
            Case,
            shapes=SHAPES.map(tuple),
            count=st.just(count),
            seed=st.integers(0, 10_000),
            noise=st.sampled_from([1e-3, 0.1, 1.0]),
            frozen=st.sampled_from([0, 0, 1]),
            zero=st.booleans(),
            weights=st.lists(st.floats(0.05, 2.0), min_size=count, max_size=count).map(tuple),
        )
    )


def close(found: State, expected: State, size: float = 1.0) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7 * size)


def keyed(count: int) -> dict[str, Any]:
    """Masks are keyed by fingerprints, so that a model keeps its own wherever it stands."""
    return {"fingerprints": tuple(f"content {i}" for i in range(count))}


def lie_near(models: Sequence[State]) -> bool:
    """Whether a tensor's models are within 90° of each other: only then the mean on a sphere is one."""
    stacks = [torch.stack([model[name].flatten() for model in models]) for name in models[0]]
    return all(bool((stack @ stack.T > 0).all()) for stack in stacks)


@pytest.mark.parametrize("name", CHAINS)
def test_the_laws_hold_for_any_models(name: str) -> None:
    links, declared = CHAINS[name]
    based = declared.get("base", any(link.base_policy == "required" for link in links))

    @settings(max_examples=10, deadline=None, database=None)
    @given(case=cases(links), rows=st.integers(1, 3))
    def hold(case: Case, rows: int) -> None:
        base, models = case.states()
        before = [{n: t.clone() for n, t in state.items()} for state in (base, *models)]
        keys = keyed(case.count)

        def merged(models: Sequence[State], origin: State, **how: Any) -> State:
            return merge(
                links, models, origin if based else None, **{"weights": case.weights, **how}
            )

        found = merged(models, base, **keys)
        for tensor_name, tensor in found.items():
            assert tensor.shape == base[tensor_name].shape
            assert tensor.dtype == torch.float64
            assert tensor.isfinite().all()
        for state, copy in zip((base, *models), before, strict=True):
            assert all(torch.equal(state[n], copy[n]) for n in copy), "an input changed"
        again = merged(models, base, **keys)
        assert all(torch.equal(found[n], again[n]) for n in found), "two runs differ"
        if not any(link.whole for link in links):
            close(merged(models, base, rows=rows, **keys), found)
        if declared.get("identity", True):
            shares = [w / sum(case.weights) for w in case.weights]
            close(merged([models[-1]] * case.count, base, weights=shares), models[-1])
        # A start in other order may find another mean of directions that are far apart.
        if declared.get("permutation", True) and (name != "karcher" or lie_near(models)):
            turned = merged(
                models[::-1],
                base,
                weights=case.weights[::-1],
                fingerprints=keys["fingerprints"][::-1],
            )
            close(turned, found)
        if declared.get("scale", True):
            grown = [{n: 8 * t for n, t in m.items()} for m in models]
            expected = {n: 8 * t for n, t in found.items()}
            close(merged(grown, {n: 8 * t for n, t in base.items()}, **keys), expected, 8.0)
        if declared.get("one_hot"):
            one = [1.0, *[0.0] * (case.count - 1)]
            close(merged(models, base, weights=one, **keys), models[0])

    hold()


@settings(max_examples=60, deadline=None, database=None)
@given(case=cases([CHAINS["linear"][0][0]]), rows=st.integers(1, 3))
def test_hypothesis_cases_are_cut_as_asked(case: Case, rows: int) -> None:
    """The cutter itself: what is cut and put together again is what it was."""
    base, models = case.states()
    whole = merge(CHAINS["passthrough"][0], models[:1], rows=EVERYTHING)
    cut = merge(CHAINS["passthrough"][0], models[:1], rows=rows)
    for name, tensor in base.items():
        assert cut[name].shape == tensor.shape
        assert torch.equal(cut[name], whole[name])
        assert whole[name].numel() == math.prod(tensor.shape)
