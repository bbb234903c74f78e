"""CoDiEmb: one encoder for retrieval and similarity (arXiv:2508.11442)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_samplers() -> Mapping[str, str]:
    return {"mixed": "emberge_codiemb.mixed:Mixed"}


@hookimpl
def register_losses() -> Mapping[str, str]:
    return {
        "mid_nce": "emberge_codiemb.losses.mid_nce:MidNCE",
        "pearson": "emberge_codiemb.losses.pearson:Pearson",
        "pro": "emberge_codiemb.losses.pro:PRO",
        "rank_kl": "emberge_codiemb.losses.rank_kl:RankKL",
    }


@hookimpl
def register_merge_strategies() -> Mapping[str, str]:
    return {"layer_softmax": "emberge_codiemb.layer_softmax:LayerSoftmax"}
