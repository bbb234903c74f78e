"""Merge transforms and strategies: one a file."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import MergeStrategy, chain
from emberge.contracts.merge import ChainSpec

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

TIES = chain(
    Trim,
    SignConsensus,
    doc="""TIES: trim small changes, elect a sign for each number, average those that agree.

    The chain `[trim, sign_consensus]` (Yadav et al., 2023, arXiv:2306.01708), with the options of both.
    A density of 1 trims nothing, which is mergekit's default; the paper takes 0.2.
    """,
    density=1.0,
)


def strategies() -> Mapping[str, type[MergeStrategy] | ChainSpec]:
    """All strategies and named chains of this package."""
    return {
        "karcher": Karcher,
        "linear": Linear,
        "model_stock": ModelStock,
        "multi_slerp": MultiSlerp,
        "nuslerp": Nuslerp,
        "passthrough": Passthrough,
        "sign_consensus": SignConsensus,
        "slerp": Slerp,
        "task_arithmetic": TaskArithmetic,
        "ties": TIES,
    }
