"""Weights of merges, found from the embeddings of the members before anything is merged."""

from __future__ import annotations

from emberge import make_hook

register_steps = make_hook(find_weights="emberge_weights.find_weights:FindWeights")
