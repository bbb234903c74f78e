"""The config.json of a model: the part of its text trunk, and the defaults of transformers' classes."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Names that configs have for the number of layers.
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Configs inside those of models with more than text, the outer ones first.
_NESTED_CONFIGS = ("thinker_config", "text_config", "language_config", "llm_config")
# Names that configs have for the number of experts of a layer.
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Keys that only place images among positions; text has the same position on every axis.
_IMAGE_ROPE_KEYS = frozenset({"mrope_section", "mrope_interleaved", "type"})


@dataclass(frozen=True)
class TrunkConfig:
    """The part of a model's config.json that describes its text trunk; `whole` is the content of the file."""

    whole: Mapping[str, Any]

    @functools.cached_property
    def stated(self) -> Mapping[str, Any]:
        """The innermost config for text, or the whole config if none is nested in it."""
        return find_trunk_config(self.whole)

    @functools.cached_property
    def values(self) -> Mapping[str, Any]:
        """The stated values, and for all other keys the defaults of the model type's class."""
        return {**read_class_defaults(self.stated.get("model_type")), **self.stated}

    @property
    def layers(self) -> int | None:
        """The number of layers; None if neither the config nor the class has one."""
        count = next((self.values[key] for key in _LAYER_COUNTS if key in self.values), None)
        return count if isinstance(count, int) else None

    @property
    def layers_key(self) -> str:
        """The key under which the config states its number of layers, or the usual key."""
        return next((key for key in _LAYER_COUNTS if key in self.stated), _LAYER_COUNTS[0])

    @property
    def experts(self) -> int:
        """The number of experts in a layer; 0 for a dense model."""
        numbers = [part.get(key) for part in (self.whole, self.stated) for key in _EXPERT_COUNTS]
        return max((number for number in numbers if isinstance(number, int)), default=0)

    @property
    def rope(self) -> dict[str, Any]:
        """The options of rotary positions, as `read_rope_options` returns them."""
        return read_rope_options(self.stated)

    def change(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole config with changed keys of the text trunk."""
        return change_trunk_config(self.whole, changes)


def find_trunk_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a model's text trunk: the innermost one for text, or the config itself."""
    inner = next((key for key in _NESTED_CONFIGS if isinstance(config.get(key), dict)), None)
    return config if inner is None else find_trunk_config(config[inner])


def change_trunk_config(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole config with changed keys of its text trunk, which may be nested."""
    inner = next((key for key in _NESTED_CONFIGS if isinstance(config.get(key), dict)), None)
    if inner is None:
        return {**config, **changes}
    return {**config, inner: change_trunk_config(config[inner], changes)}


def read_rope_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a text trunk's rotary positions, in one form for all releases.

    Options that the config does not state, and those of positions in images, are left out.
    """
    config = find_trunk_config(config)
    stated_options = config.get("rope_parameters") or config.get("rope_scaling") or {}
    options = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    rope_type = stated_options.get("rope_type", stated_options.get("type", "default"))
    options["rope_type"] = "default" if rope_type == "mrope" else rope_type
    return options | {
        k: v for k, v in stated_options.items() if k not in {*_IMAGE_ROPE_KEYS, "rope_type"}
    }


def read_class_defaults(model_type: Any) -> Mapping[str, Any]:
    """Return the plain default values of the transformers config class of a `model_type`.

    They are read from the source, as importing the class costs seconds.
    """
    return _read_defaults(model_type) if isinstance(model_type, str) else {}


@functools.cache
def _read_defaults(model_type: str) -> Mapping[str, Any]:
    source = _read_source(model_type.replace("-", "_"))
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in classes if _read_model_type(node) == model_type), [])
    return {
        field.target.id: field.value.value
        for field in body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(field.value, ast.Constant)
    }


def _read_source(name: str) -> str:
    """Return the source of the module that defines a config class; "" if there is none."""
    spec = importlib.util.find_spec("transformers") if name.isidentifier() else None
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(root) / f"models/{name}/configuration_{name}.py"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return ""


def _read_model_type(node: ast.ClassDef) -> str | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "model_type":
            return ast.unparse(line.value).strip("'")
    return None
