"""A strategy describes its result by a formula or computes it in `merge`; measures are added by key."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emberge import Block, MergeStrategy, Stats, WeightedSum, merge_blocks
from emberge.contracts import add_measures
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Half(MergeStrategy):
    """Half of each model."""

    def formula(self, block: Block, stats: Stats) -> WeightedSum | None:
        return WeightedSum([0.5] * len(block.models))


@dataclass(frozen=True, kw_only=True)
class HalfAndOne(Half):
    """The same plus one: its parent's formula is not its own."""

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.evaluate(WeightedSum([0.5] * len(block.models))) + 1


@dataclass(frozen=True, kw_only=True)
class Mixed(Half):
    """A formula for most tensors, and rows of its own for bias vectors."""

    def formula(self, block: Block, stats: Stats) -> WeightedSum | None:
        return None if block.name.endswith("bias") else super().formula(block, stats)

    def merge(self, block: Block, stats: Stats) -> Tensor:
        if self.formula(block, stats) is not None:
            return super().merge(block, stats)
        return block.tensors[0]


class NothingYet(MergeStrategy):
    """Neither a formula nor a merge."""


MODELS = torch.tensor([[[2.0, 4.0]], [[6.0, -8.0]]])
HALVES = torch.tensor([[4.0, -2.0]])


def merge_one(strategy: MergeStrategy, block: Block) -> Tensor:
    return next(merge_blocks([strategy], [block]))


def test_a_formula_is_the_merge() -> None:
    assert torch.equal(merge_one(Half(), Block.of(MODELS)), HALVES)
    assert torch.equal(Half().merge(Block.of(MODELS), []), HALVES)


def test_a_merge_of_a_subclass_comes_before_its_parents_formula() -> None:
    assert HalfAndOne().formula(Block.of(MODELS), []) is None
    assert torch.equal(merge_one(HalfAndOne(), Block.of(MODELS)), HALVES + 1)


def test_a_formula_may_be_for_some_tensors() -> None:
    assert torch.equal(merge_one(Mixed(), Block.of(MODELS)), HALVES)
    assert torch.equal(merge_one(Mixed(), Block.of(MODELS, name="a.bias")), MODELS[0])


def test_a_strategy_without_either_is_named() -> None:
    with pytest.raises(NotImplementedError, match="NothingYet has neither a formula nor a merge"):
        merge_one(NothingYet(), Block.of(MODELS))


def test_measures_are_added_by_key_also_inside_mappings() -> None:
    measures = [{"n": 1, "by_model": {"a": 1}}, {"n": 2, "by_model": {"a": 3, "b": 5}}]
    assert add_measures(measures) == {"n": 3, "by_model": {"a": 4, "b": 5}}
