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
        "mid_nce": "emberge_codiemb.mid_nce:MidNCE",
        "pearson": "emberge_codiemb.pair_losses:Pearson",
        "pro": "emberge_codiemb.pair_losses:PRO",
        "rank_kl": "emberge_codiemb.pair_losses:RankKL",
    }


@hookimpl
def register_merge_strategies() -> Mapping[str, str]:
    return {"layer_softmax": "emberge_codiemb.layer_softmax:LayerSoftmax"}
