"""BidirLM: causal language models made encoders, of text and of more (arXiv:2604.02045)."""

from __future__ import annotations

from emberge import make_hook

register_steps = make_hook(
    as_encoder="emberge_bidirlm.as_encoder:AsEncoder",
    compose="emberge_bidirlm.compose_step:Compose",
)
