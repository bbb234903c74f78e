"""The `text_encoder` backbone: models of transformers and sentence-transformers as encoders."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Backbone, hookimpl


@hookimpl
def register_backbones() -> Mapping[str, type[Backbone]]:
    from emberge_encoder.text_encoder import TextEncoder

    return {"text_encoder": TextEncoder}
