"""CoDiEmb: one encoder for retrieval and similarity (arXiv:2508.11442)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Loss, MergeStrategy, Sampler, Step, hookimpl


@hookimpl
def register_samplers() -> Mapping[str, type[Sampler]]:
    from emberge_codiemb.samplers.mixed import Mixed

    return {"mixed": Mixed}


@hookimpl
def register_losses() -> Mapping[str, type[Loss]]:
    from emberge_codiemb.losses.mid_nce import MidNCE
    from emberge_codiemb.losses.pearson import Pearson
    from emberge_codiemb.losses.pro import PRO
    from emberge_codiemb.losses.rank_kl import RankKL
    from emberge_codiemb.losses.ranknet import RankNet

    return {
        "mid_nce": MidNCE,
        "pearson": Pearson,
        "pro": PRO,
        "rank_kl": RankKL,
        "ranknet": RankNet,
    }


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy]]:
    from emberge_codiemb.layer_softmax import LayerSoftmax

    return {"layer_softmax": LayerSoftmax}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_codiemb.geometry.geometry_step import GeometryStep

    return {"geometry": GeometryStep}
