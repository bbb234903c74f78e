"""CoDiEmb: one encoder for retrieval and similarity (arXiv:2508.11442)."""

from __future__ import annotations

from emberge import make_hook

register_samplers = make_hook(mixed="emberge_codiemb.mixed:Mixed")
register_losses = make_hook(
    mid_nce="emberge_codiemb.mid_nce:MidNCE",
    pearson="emberge_codiemb.pair_losses:Pearson",
    pro="emberge_codiemb.pair_losses:PRO",
    rank_kl="emberge_codiemb.pair_losses:RankKL",
)
register_merge_strategies = make_hook(layer_softmax="emberge_codiemb.layer_softmax:LayerSoftmax")
