"""Configs in the shapes of those of mergekit's documentation; A, B, C and BASE stand for models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

_TEXT = """
# weighted mean
models:
  - {model: A, parameters: {weight: 1.0}}
  - {model: B, parameters: {weight: 0.3}}
  - {model: C, parameters: {weight: 0.5}}
merge_method: linear
# the base is a model like others where a method has none
base_model: BASE
models: [{model: BASE, parameters: {weight: 0.2}}, {model: A, parameters: {weight: 0.8}}]
merge_method: linear
# slerp by kind of layer and depth
slices:
  - sources: [{model: A, layer_range: [0, 4]}, {model: B, layer_range: [0, 4]}]
merge_method: slerp
base_model: A
parameters:
  t:
    - {filter: self_attn, value: [0, 0.5, 0.3, 0.7, 1]}
    - {filter: mlp, value: [1, 0.5, 0.7, 0.3, 0]}
    - {value: 0.5}
# slerp from the second model
models: [{model: A}, {model: B}]
base_model: B
merge_method: slerp
parameters: {t: 0.2}
# ties with gradients
models:
  - model: A
    parameters:
      density: [1, 0.7, 0.1]
      weight: 1.0
  - model: B
    parameters:
      density: 0.5
      weight: [0, 0.3, 0.7, 1]
  - model: C
    parameters:
      density: 0.33
      weight: [{filter: mlp, value: 0.5}, {value: 0}]
merge_method: ties
base_model: BASE
parameters: {normalize: true, int8_mask: true}
# the base among the models, without parameters
models:
  - model: BASE
  - {model: A, parameters: {density: 0.53, weight: 0.4}}
  - {model: B, parameters: {density: 0.53, weight: 0.3}}
merge_method: ties
base_model: BASE
parameters: {lambda: 1e-1}
# trimmed changes rescaled
models: [{model: A}, {model: B}]
merge_method: ties
base_model: BASE
parameters: {weight: 0.5, density: 0.4, rescale: true}
# parameters of a slice come before those of the config
slices:
  - sources:
      - {model: A, layer_range: [0, 4], parameters: {weight: [0.9, 0.1]}}
      - {model: B, layer_range: [0, 4]}
    parameters: {weight: [{filter: layers.0, value: 0.2}, {value: 0.7}], normalize: false}
merge_method: linear
parameters: {weight: 0.25, normalize: true}
# a base that a slice names itself
slices:
  - sources: [{model: C, layer_range: [0, 4]}, {model: B, layer_range: [0, 4]}]
    base_model: C
base_model: BASE
merge_method: task_arithmetic
parameters: {weight: 0.7}
# a model weakened by filter
slices:
  - sources:
      - model: A
        layer_range: [0, 4]
        parameters:
          scale: [{filter: layers.1.mlp, value: 0.0}, {filter: o_proj, value: 0.5}, {value: 1.0}]
merge_method: passthrough
# whether to normalise by filter
models: [{model: A}, {model: B}]
merge_method: linear
parameters:
  weight: 0.4
  normalize: [{filter: mlp, value: false}, {value: true}]
# model stock
models: [{model: A}, {model: B}, {model: C}]
base_model: BASE
merge_method: model_stock
parameters: {filter_wise: true}
# a filter is held against whole names
models: [{model: A}, {model: B}]
base_model: A
merge_method: slerp
parameters:
  t: [{filter: model.norm, value: 0.9}, {filter: model.layers.1, value: 0.1}, {value: 0.5}]
# a value beyond what ours take
models: [{model: A}, {model: B}]
base_model: A
merge_method: slerp
parameters: {t: 1.5}
# nothing drawn where the density is 1
models: [{model: A}, {model: B}]
base_model: BASE
merge_method: dare_ties
parameters: {weight: 0.5, density: 1.0, rescale: false}
# numbers as YAML 1.1 reads them
models: [{model: A, parameters: {weight: 5e-1}}, {model: B, parameters: {weight: "0.25"}}]
merge_method: linear
parameters: {normalize: yes}
# nuslerp
models: [{model: A, parameters: {weight: 0.7}}, {model: B, parameters: {weight: [0.1, 0.6]}}]
merge_method: nuslerp
# nuslerp of changes, vector by vector
models: [{model: A, parameters: {weight: 0.7}}, {model: B, parameters: {weight: 0.4}}]
base_model: BASE
merge_method: nuslerp
parameters: {nuslerp_flatten: false, nuslerp_row_wise: true}
# multi-slerp
models:
  - {model: A, parameters: {weight: 1}}
  - {model: B, parameters: {weight: 0.5}}
  - {model: C, parameters: {weight: 0.25}}
merge_method: multislerp
# multi-slerp of changes
models: [{model: A}, {model: B}, {model: C}]
base_model: BASE
merge_method: multislerp
parameters: {weight: 0.5, normalize_weights: true, eps: 1e-8}
# karcher mean
models: [{model: A}, {model: B}, {model: C}]
merge_method: karcher
parameters: {max_iter: 20, tol: 1e-6}
# karcher mean with mergekit's own defaults, and what saves it memory
models: [{model: A}, {model: B}]
merge_method: karcher
parameters: {int8_mask: true}
# task arithmetic
models: [{model: A, parameters: {weight: 0.8}}, {model: B, parameters: {weight: -0.2}}]
base_model: BASE
merge_method: task_arithmetic
parameters: {lambda: 0.9}
# nothing drawn by rank where the density is 1
models: [{model: A}, {model: B}]
base_model: BASE
merge_method: della
parameters: {weight: 0.5, density: 1.0, lambda: 1.1}
# nothing drawn, without a consensus
models: [{model: A}, {model: B}]
base_model: BASE
merge_method: della_linear
parameters: {weight: 0.5, density: 1.0}
# breadcrumbs
models:
  - {model: A, parameters: {weight: 0.6, density: 0.9, gamma: 0.01}}
  - {model: B, parameters: {weight: 0.4, density: 0.8, gamma: 0.1}}
base_model: BASE
merge_method: breadcrumbs
# breadcrumbs with a consensus
models: [{model: A}, {model: B}, {model: C}]
base_model: BASE
merge_method: breadcrumbs_ties
parameters: {weight: 0.4, density: 0.9, gamma: 0.05, lambda: 1.2}
# sce
models: [{model: A}, {model: B}, {model: C}]
base_model: BASE
merge_method: sce
parameters: {select_topk: 0.3}
# model stock over whole tensors
models: [{model: A}, {model: B}]
base_model: BASE
merge_method: model_stock
# nearswap
models: [{model: B}]
base_model: A
merge_method: nearswap
parameters: {t: 0.001}
# arcee fusion
models: [{model: A}, {model: B}]
base_model: A
merge_method: arcee_fusion
"""
CONFIGS = {
    title: config.strip() + "\n"
    for title, _, config in (part.partition("\n") for part in _TEXT.split("\n# ")[1:])
}


def filled(text: str, models: Mapping[str, Path], dtype: str = "float32") -> str:
    """A config with the models' folders in it."""
    words = dedent(text)
    for name, folder in models.items():
        words = re.sub(rf"(model|path): {name}\b", rf"\1: {folder}", words)
    return f"{words}dtype: {dtype}\n" if dtype else words
