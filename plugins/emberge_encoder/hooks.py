"""Models of transformers and sentence-transformers as encoders; random models to train from nothing."""

from __future__ import annotations

from emberge import make_hook

register_backbones = make_hook(
    text_encoder="emberge_encoder.text_encoder:TextEncoder",
    multi_vector="emberge_encoder.stock.multi_vector:MultiVector",
    splade="emberge_encoder.stock.splade:Splade",
    cross_encoder="emberge_encoder.stock.cross_encoder:CrossEncoder",
)
register_steps = make_hook(random_model="emberge_encoder.random_model:RandomModel")
