"""Weights of merges, found from the embeddings of the members before anything is merged."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"find_weights": "emberge_weights.find_weights:FindWeights"}
