"""CoDiEmb: one encoder for retrieval and similarity (arXiv:2508.11442)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import MergeStrategy, hookimpl


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy]]:
    from emberge_codiemb.layer_softmax import LayerSoftmax

    return {"layer_softmax": LayerSoftmax}
