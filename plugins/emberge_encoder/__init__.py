"""Models of transformers and sentence-transformers as encoders; random ones to train from nothing."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Backbone, Step, hookimpl


@hookimpl
def register_backbones() -> Mapping[str, type[Backbone]]:
    from emberge_encoder.text_encoder import TextEncoder

    return {"text_encoder": TextEncoder}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_encoder.new_model.random_model import RandomModel

    return {"random_model": RandomModel}
