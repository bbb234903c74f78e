"""Models of transformers and sentence-transformers as encoders; random models to train from nothing."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_backbones() -> Mapping[str, str]:
    return {
        "text_encoder": "emberge_encoder.text_encoder:TextEncoder",
        "multi_vector": "emberge_encoder.kinds.multi_vector:MultiVector",
        "splade": "emberge_encoder.kinds.splade:Splade",
        "cross_encoder": "emberge_encoder.kinds.cross_encoder:CrossEncoder",
    }


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"random_model": "emberge_encoder.random_model:RandomModel"}
