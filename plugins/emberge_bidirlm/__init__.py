"""BidirLM: causal language models made encoders, of text and of more (arXiv:2604.02045)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_bidirlm.as_encoder import AsEncoder
    from emberge_bidirlm.compose.compose_step import Compose
    from emberge_bidirlm.random_tower import RandomTower
    from emberge_bidirlm.shuffled_parts import ShuffledParts

    return {
        "as_encoder": AsEncoder,
        "compose": Compose,
        "random_tower": RandomTower,
        "shuffled_parts": ShuffledParts,
    }
