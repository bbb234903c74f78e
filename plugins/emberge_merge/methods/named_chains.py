"""Chains of merge stages that have a name of their own."""

from __future__ import annotations

from emberge import chain

from emberge_merge.methods.sparse.drop import Drop
from emberge_merge.methods.sparse.drop_by_rank import DropByRank
from emberge_merge.methods.sparse.energy_weights import EnergyWeights
from emberge_merge.methods.sparse.rescale import Rescale
from emberge_merge.methods.sparse.select_variance import SelectVariance
from emberge_merge.methods.sparse.sign_consensus import SignConsensus
from emberge_merge.methods.sparse.trim import Trim, TrimOutliers
from emberge_merge.methods.sparse.unanimous import Unanimous
from emberge_merge.methods.weighted_sums import TaskArithmetic

TIES = chain(
    Trim,
    SignConsensus,
    doc="""TIES: trim small changes, elect a sign for each number, average those that agree.

    The chain `[trim, sign_consensus]` (Yadav et al., 2023, arXiv:2306.01708), with the options of both.
    A density of 1 trims nothing, which is mergekit's default; the paper takes 0.2.

    Example:
        strategy: {ties: {density: 0.2}}
    """,
    density=1.0,
)


DARE_LINEAR = chain(
    Drop,
    Rescale,
    TaskArithmetic,
    doc="""DARE: drop changes at random, rescale what is left, add the weighted changes to the base.

    The chain `[drop, rescale, task_arithmetic]` (Yu et al., 2023, arXiv:2311.03099).

    Example:
        strategy: {dare_linear: {density: 0.5}}
    """,
)

DARE_TIES = chain(
    Drop,
    Rescale,
    SignConsensus,
    doc="""DARE with TIES: drop changes at random, rescale, elect a sign for each number.

    The chain `[drop, rescale, sign_consensus]` (Yu et al., 2023, arXiv:2311.03099).

    Example:
        strategy: {dare_ties: {density: 0.5}}
    """,
    normalize=False,
)

DELLA = chain(
    DropByRank,
    Rescale,
    SignConsensus,
    doc="""DELLA: drop changes at random, small ones more often, rescale, elect a sign for each number.

    The chain `[drop_by_rank, rescale, sign_consensus]` (Deep et al., 2024, arXiv:2406.11617).

    Example:
        strategy: {della: {density: 0.5, epsilon: 0.1}}
    """,
)

DELLA_LINEAR = chain(
    DropByRank,
    Rescale,
    TaskArithmetic,
    doc="""DELLA without the election: drop by rank, rescale, add the weighted changes to the base.

    The chain `[drop_by_rank, rescale, task_arithmetic]` (Deep et al., 2024, arXiv:2406.11617).

    Example:
        strategy: {della_linear: {density: 0.5, epsilon: 0.1}}
    """,
)

BREADCRUMBS = chain(
    TrimOutliers,
    Rescale,
    TaskArithmetic,
    doc="""Model breadcrumbs: undo the largest and the smallest changes, add the rest to the base.

    The chain `[trim_outliers, rescale, task_arithmetic]` (Davari and Belilovsky, 2023, arXiv:2312.06795).

    Example:
        strategy: {breadcrumbs: {density: 0.9, gamma: 0.01}}
    """,
    rescale_mode="none",
)

BREADCRUMBS_TIES = chain(
    TrimOutliers,
    Rescale,
    SignConsensus,
    doc="""Breadcrumbs with the sign election of TIES.

    The chain `[trim_outliers, rescale, sign_consensus]` (Davari and Belilovsky, 2023, arXiv:2312.06795).

    Example:
        strategy: {breadcrumbs_ties: {density: 0.9, gamma: 0.01}}
    """,
    rescale_mode="none",
    normalize=False,
)

SCE = chain(
    SelectVariance,
    EnergyWeights,
    SignConsensus,
    doc="""SCE as FuseChat has it: select where models differ, calculate weights, erase minority signs.

    The chain `[select_variance, energy_weights, sign_consensus]` (Wan et al., 2024, arXiv:2408.07990).

    Example:
        strategy: {sce: {select_topk: 0.5}}
    """,
    elect="unweighted",
)

SCE_UNANIMOUS = chain(
    Unanimous,
    TaskArithmetic,
    doc="""SCE as BOOM's text prints it: a number moves only where all models move it the same way.

    The chain `[unanimous, task_arithmetic]`, with shares for weights (arXiv:2602.05787, eqs. 7 and 8).

    Example:
        strategy: sce_unanimous
    """,
    normalize=True,
)
