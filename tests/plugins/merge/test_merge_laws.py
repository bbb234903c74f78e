"""Every strategy keeps the laws of merging; what is declared to differ is switched off by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from emberge import Block, Measures, MergeStrategy, Stats
from emberge.testing import check_strategy
from emberge_merge.methods import strategies, transforms
from torch import Tensor

from tests.support.registered import CHAINS


@pytest.mark.parametrize("name", CHAINS)
def test_the_strategies_keep_the_laws(name: str) -> None:
    links, exceptions = CHAINS[name]
    check_strategy(links, **exceptions)


def test_no_strategy_is_left_out() -> None:
    tried = {name.partition(",")[0].partition(" ")[0] for name in CHAINS}
    # What statistics make of fisher is in its own tests; without a file it refuses.
    assert {*strategies(), "layer_softmax"} - {"fisher"} <= tried
    used = {link.name_in_recipes for links, _ in CHAINS.values() for link in links}
    assert set(transforms()) <= used


@dataclass(frozen=True, kw_only=True)
class _Off(MergeStrategy):
    """Break one law at a time."""

    law: str = ""

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        # The greatest of a block is no sum over blocks.
        return {"largest": block.tensors.abs().max(), "blocks": 1}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        merged = block.tensors.mean(0)
        if self.law == "identity":
            return merged * 1.01
        if self.law == "permutation":
            return block.combine([0.5, 0.25, 0.25])
        if self.law == "scale covariance":
            return merged.clamp(max=6.0)
        if self.law == "blocks: the size":
            return merged - merged.mean() * 1e-3 + merged.flatten()[0] * 1e-3
        if self.law == "blocks: measures":
            return merged * (1 + stats[0]["blocks"])
        if self.law == "finite":
            return merged * (merged / merged)
        if self.law == "one-hot":
            return merged
        return merged


@pytest.mark.parametrize(
    "law",
    [
        "identity",
        "permutation",
        "scale covariance",
        "blocks: the size",
        "blocks: measures",
        "finite",
        "one-hot",
    ],
)
def test_a_broken_law_is_named(law: str) -> None:
    with pytest.raises(AssertionError, match=f"^{law}"):
        check_strategy(_Off(law=law), one_hot=law == "one-hot")
