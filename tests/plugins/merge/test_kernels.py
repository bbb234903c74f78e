"""Compiled kernels and torch give the same bytes: every strategy, any shape, numbers, weights and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Block, CheckpointError, Stage
from emberge_merge.methods.sparse.cut import UNREACHED_LIMIT, Limit
from emberge_merge.methods.sparse.delta_sums import MagnitudeSums
from emberge_merge.methods.sparse.select_variance import KeepVaried, TakeVariance
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.chains import chain
from tests.support.compiled import require_kernels, store
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.registered import CHAINS, needs_whole

require_kernels()

State = Mapping[str, Tensor]
CHUNK = 2048
WIDTHS = st.sampled_from([1, 2, 63, 65, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17])
SHAPES = st.one_of(
    st.just(()),
    WIDTHS.map(lambda width: (width,)),
    st.tuples(st.sampled_from([1, 2, 5]), WIDTHS),
    st.tuples(st.sampled_from([1, 67]), st.integers(1, 40), st.integers(1, 3)),
)
# Strategies that need a whole tensor take its singular values.
SMALL = st.tuples(st.integers(1, 7), st.integers(1, 9))
ENDS: dict[str, Sequence[Stage]] = {
    "ties of nothing": chain("ties", density=0.0),
    "ties of nearly all": chain("ties", density=0.999, scale=0.7),
    "ties by count": chain("ties", density=0.3, elect="unweighted", consensus_mean="count"),
    "dare of nothing": chain("dare_ties", density=0.0),
    "dare, then ties": chain("dare_ties", density=0.4),
    "dare, 1/density": chain("dare_linear", density=0.3, rescale_mode="inverse_density"),
    "breadcrumbs of nothing": chain("breadcrumbs_ties", density=0.0, gamma=0.3),
    "trim, then drop": [
        *chain("trim", density=0.6),
        *chain("drop", density=0.6),
        *chain("trim", density=0.3),
        *chain("task_arithmetic"),
    ],
    "sums": chain("linear", normalize=False),
    "means of groups, then their angles": [
        *chain("group", by=chain("linear")[0]),
        *chain("multi_slerp"),
    ],
    "means of groups, then their changes": [
        *chain("group", by=chain("linear")[0]),
        *chain("ties", density=0.4),
    ],
}
TRIED = {**{name: links for name, (links, _) in CHAINS.items()}, **ENDS}


@dataclass(frozen=True)
class Case:
    """Models around a base; `coarse` changes have many ties and zeros."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    last_dtype: torch.dtype
    count: int
    seed: int
    coarse: bool
    weights: tuple[float, ...]

    def states(self) -> tuple[State, list[State]]:
        generator = torch.Generator().manual_seed(self.seed)

        def some(shape: Sequence[int]) -> Tensor:
            found = torch.randn(tuple(shape), generator=generator)
            return found.mul(1.5).round() if self.coarse else found

        base = {f"layers.{i}.w": some(s).to(self.dtype) for i, s in enumerate(self.shapes)}
        dtypes = [self.dtype] * (self.count - 1) + [self.last_dtype]
        return base, [
            {n: (t.float() + 0.0625 * some(t.shape)).to(dtype) for n, t in base.items()}
            for dtype in dtypes
        ]


def cases(links: Sequence[Stage]) -> st.SearchStrategy[Case]:
    arity, whole = links[0].arity, needs_whole(links)
    counts = st.integers(max(1, arity.start), min(arity.stop - 1, 6))
    dtypes = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
    return counts.flatmap(
        lambda count: st.builds(
            Case,
            shapes=st.lists(SMALL if whole else SHAPES, min_size=1, max_size=3).map(tuple),
            dtype=dtypes,
            last_dtype=dtypes,
            count=st.just(count),
            seed=st.integers(0, 10_000),
            coarse=st.booleans(),
            weights=st.lists(
                st.sampled_from([1.0, 0.3, 0.7, 0.0, -0.2]), min_size=count - 1, max_size=count - 1
            ).map(lambda rest: (1.0, *rest)),
        )
    )


def merged(links: Sequence[Stage], base: State, models: Sequence[State], **how: Any) -> Any:
    """The bytes of the merge, or the message with which it was refused."""
    based = any(link.base_policy == "required" for link in links)
    try:
        found = merge_state_dicts(models, links, base if based else None, **how)
    except CheckpointError as error:
        return str(error)
    return {
        name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in found.items()
    }


@pytest.mark.parametrize("name", TRIED)
def test_kernels_give_the_bytes_of_torch(name: str) -> None:
    links = TRIED[name]

    @settings(max_examples=6, deadline=None, database=None)
    @given(
        case=cases(links),
        granule=st.sampled_from([1, 3000, 1 << 18]),
        workers=st.sampled_from([1, 2, 5]),
    )
    def same(case: Case, granule: int, workers: int) -> None:
        base, models = case.states()
        how = {
            "weights": case.weights,
            "granule": granule,
            "groups": (["g", "h"] * 3)[: case.count],
        }
        wanted = merged(links, base, models, **how)
        found = merged(
            links, base, models, **how, compiled=True, workers=workers, block=max(granule, 2500)
        )
        if isinstance(wanted, str):  # threads decide which tensor is refused first
            found, wanted = (str(one).partition(": ")[2] for one in (found, wanted))
        assert found == wanted

    same()


def spread_values(kind: str, shape: tuple[int, int]) -> Tensor:
    """Numbers whose magnitudes are spread in one of several ways, with both signs."""
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(shape, generator=generator)
    match kind:
        case "ties":
            return values.mul(3).round()
        case "mostly zeros":
            return values.where(values.abs() > 2.5, 0.0)
        case "outliers":
            return values.where(values.abs() < 2, values * 1e12)
        case "two scales":
            return values.where(values > 0, values * 2.0**-40)
        case "one magnitude":
            return values.sign()
        case "subnormal":
            return values * 2.0**-140
        case _:
            return values


@pytest.mark.parametrize("width", [1, 255, 256, 2047, 2048, 2050, 17_000])
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "kind",
    ["normal", "ties", "mostly zeros", "outliers", "two scales", "one magnitude", "subnormal"],
)
def test_drops_by_rank_are_those_of_a_sort(kind: str, density: float, width: int) -> None:
    links = chain("della_linear", density=density, epsilon=0.09, rescale_mode="none")
    model = {"w": spread_values(kind, (3, width))}
    base = {"w": torch.zeros(3, width)}
    wanted = merged(links, base, [model])
    assert merged(links, base, [model], compiled=True) == wanted


@pytest.mark.parametrize("models", [2, 3, 4, 6])
def test_variances_are_limited_as_by_torch(models: int) -> None:
    size, start = 3 * CHUNK // 2 + 37, 5000
    generator = torch.Generator().manual_seed(models)
    coarse = torch.randn(models + 1, size, generator=generator).mul(4).round().div(128)
    decoded = Block.of(coarse[:-1], coarse[-1], start=start)
    compiled = decoded.replace(rows=replace(store(list(coarse.bfloat16())), start=start))
    found, exact = (one.record(TakeVariance(models)).deltas for one in (compiled, decoded))
    assert torch.equal(found, exact)
    patterns, counts = exact.view(torch.int32).unique(return_counts=True)
    common = int(patterns[1:][counts[1:].argmax()])
    assert (exact.view(torch.int32)[0, 2048:] == common).sum() >= 5
    # Limits in another block, and limits with so many ties to keep that some are in the next chunk.
    limits = [Limit(common), Limit(common, 0, 3), Limit(common, start + size, 2), Limit(0, 0)]
    rows = [start, start + 700, start + 1024, start + 2048]
    limits += [Limit(common, row, quota) for row in rows for quota in (1, 5)]
    for limit in [*limits, Limit(0), UNREACHED_LIMIT]:
        both = [one.record(KeepVaried(limit, models)) for one in (compiled, decoded)]
        assert torch.equal(*(one.deltas.view(torch.int32) for one in both)), limit
        assert np.array_equal(*(one.evaluate(MagnitudeSums(squared=True)) for one in both)), limit
