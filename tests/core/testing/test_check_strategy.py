"""Every law of `check_strategy` finds a strategy that breaks it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emberge import Block, Measures, MergeStrategy, Pass, Stats
from emberge.testing import check_strategy
from torch import Tensor

from tests.support.laws import find_broken_law


@dataclass(frozen=True, kw_only=True)
class _Broken(MergeStrategy):
    """Break one law at a time."""

    law: str = ""

    passes = (Pass(),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        # The greatest of a block is no sum over blocks.
        return {"largest": block.tensors.abs().max(), "blocks": 1}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        merged = sum(block.tensors) / len(block.tensors)
        return {
            "": lambda: merged,
            "shapes": lambda: merged.reshape(1, -1),
            "no mutation": lambda: merged + block.base.mul_(1.01),  # type: ignore[union-attr]
            "identity": lambda: merged.where(merged == 1.0, 1.01 * merged),
            "permutation": lambda: (merged + block.tensors[0]) / 2,
            "scale covariance": lambda: merged.clamp(max=6.0),
            "blocks: the result": lambda: block.tensors.mean(0),
            "blocks: measures": lambda: merged * (1 + stats[0]["blocks"]),
            "finite": lambda: merged * (merged / merged),
            "frozen": lambda: 1.01 * merged,
            "determinism": lambda: merged + torch.rand(()),
            "one-hot": lambda: merged,
        }[self.law]()


LAWS = (
    *("shapes", "no mutation", "identity", "permutation", "scale covariance", "blocks: the result"),
    *("blocks: measures", "finite", "frozen", "determinism", "one-hot"),
)


@pytest.mark.parametrize("law", ["", *LAWS])
def test_a_broken_law_is_named_and_a_sound_strategy_breaks_none(law: str) -> None:
    base = True if law == "no mutation" else None
    broken = find_broken_law(check_strategy, _Broken(law=law), base=base, one_hot=law == "one-hot")
    assert broken.startswith(law) if law else broken == ""
