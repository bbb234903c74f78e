"""Smaller models: fewer layers, students of teachers, and a vocabulary of what a corpus needs."""

from __future__ import annotations

from emberge import make_hook

register_steps = make_hook(
    cut_layers="emberge_smaller.cut_layers_step:CutLayers",
    distil="emberge_smaller.distil_step:Distil",
    static_model="emberge_smaller.static_model_step:StaticModel",
    trim_vocabulary="emberge_smaller.vocabulary.trim_vocabulary_step:TrimVocabulary",
)
