"""Every strategy keeps the laws of merging; what is declared to differ is switched off by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from emberge import Block, Measures, MergeStrategy, PerModel, PerTensor, Stats
from emberge.testing import check_strategy
from emberge_standard.merging.karcher import Karcher
from emberge_standard.merging.linear import Linear
from emberge_standard.merging.model_stock import ModelStock
from emberge_standard.merging.multi_slerp import MultiSlerp
from emberge_standard.merging.nuslerp import Nuslerp
from emberge_standard.merging.passthrough import Passthrough
from emberge_standard.merging.sign_consensus import SignConsensus
from emberge_standard.merging.slerp import Slerp
from emberge_standard.merging.task_arithmetic import TaskArithmetic
from emberge_standard.merging.trim import Trim
from torch import Tensor

CHAINS: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (Linear(), {"one_hot": True}),
    "slerp": (Slerp(), {}),
    # t is a place between the first and the second, so the order of the two is meant.
    "slerp, a quarter": (Slerp(t=PerTensor(0.25)), {"permutation": False}),
    "nuslerp": (Nuslerp(), {"one_hot": True}),
    "nuslerp by row": (Nuslerp(granularity="row"), {"one_hot": True}),
    "nuslerp by column": (Nuslerp(granularity="column"), {"one_hot": True}),
    "nuslerp of deltas": (Nuslerp(), {"base": True, "one_hot": True}),
    "nuslerp of deltas by row": (Nuslerp(granularity="row"), {"base": True, "one_hot": True}),
    "multi_slerp log": (MultiSlerp(), {"one_hot": True}),
    "multi_slerp projected": (MultiSlerp(mode="projected"), {"one_hot": True}),
    "multi_slerp karcher": (MultiSlerp(mode="karcher"), {"one_hot": True}),
    "multi_slerp of deltas": (MultiSlerp(space="deltas"), {"one_hot": True}),
    "karcher": (Karcher(), {"one_hot": True}),
    "task_arithmetic": (TaskArithmetic(), {"one_hot": True}),
    "task_arithmetic, normalized": (TaskArithmetic(normalize=True), {"one_hot": True}),
    "model_stock": (ModelStock(), {}),
    "model_stock, raw": (ModelStock(clamp=False), {}),
    "model_stock by row": (ModelStock(granularity="row"), {}),
    "passthrough": (Passthrough(), {}),
    "sign_consensus": (SignConsensus(), {}),
    # Trimming undoes small changes, so copies of one model do not give that model.
    "ties": ([Trim(), SignConsensus()], {"identity": False}),
    "ties, density 1": ([Trim(density=PerModel(1.0)), SignConsensus()], {}),
    "trimmed arithmetic": ([Trim(), TaskArithmetic()], {"identity": False}),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_strategies_keep_the_laws(name: str) -> None:
    links, exceptions = CHAINS[name]
    check_strategy(links, **exceptions)


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
