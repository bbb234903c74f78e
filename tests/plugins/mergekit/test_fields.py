"""Every field of mergekit's configs means something, or is refused by name: none passes in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from emberge import RecipeError
from emberge_mergekit.translate import translate

from tests.plugins.mergekit.peer import quietly
from tests.support.places import ROOT

SLICED = {
    "merge_method": "task_arithmetic",
    "base_model": "me/a",
    "slices": [
        {
            "sources": [
                {"model": "me/a", "layer_range": [0, 4]},
                {"model": "me/b", "layer_range": [0, 4], "parameters": {"weight": 0.5}},
            ]
        }
    ],
}
WHOLE = {
    "merge_method": "task_arithmetic",
    "base_model": "me/a",
    "models": [{"model": "me/b", "parameters": {"weight": 0.5}}],
}
NAME = ("models", 0, "model")
B = {"model": "me/b", "parameters": {"weight": 0.5}}


# By mergekit's class: the fields that mean something here.
TAKEN = {
    "MergeConfiguration": "slices models merge_method base_model dtype tokenizer_source tokenizer out_dtype "
    "parameters",
    "InputModelDefinition": "model parameters",
    "InputSliceDefinition": "model layer_range parameters",
    "OutputSliceDefinition": "sources base_model parameters",
    "ConditionalParameter": "value filter",
    "ModelReference": "model lora",
    "ModelPath": "path revision",
    "TokenizerConfig": "source",
}
# By class and field: a config, a place in it, and a value there.
REFUSED: Mapping[str, tuple[Mapping[str, Any], tuple[Any, ...], Any]] = {
    "MergeConfiguration.modules": (WHOLE, ("modules",), {"default": {"models": [B]}}),
    "MergeConfiguration.chat_template": (WHOLE, ("chat_template",), "chatml"),
    "TokenizerConfig.tokens": (WHOLE, ("tokenizer", "tokens"), {"x": {"source": "me/b"}}),
    "TokenizerConfig.pad_to_multiple_of": (WHOLE, ("tokenizer", "pad_to_multiple_of"), 8),
    "OutputSliceDefinition.residual_weight": (SLICED, ("slices", 0, "residual_weight"), 0.5),
    "ModelReference.override_architecture": (
        WHOLE,
        NAME,
        {"model": {"path": "me/b"}, "override_architecture": "LlamaForCausalLM"},
    ),
}
SHAPES = ("models", "slices", "modules")


def written(config: Mapping[str, Any], place: tuple[Any, ...], value: Any) -> str:
    """The config with a value at a place; of models, slices and modules it keeps one."""
    whole: Any = yaml.safe_load(yaml.safe_dump(dict(config)))
    at = whole
    for key in place[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[place[-1]] = value
    if place[0] in SHAPES and len(place) == 1:
        whole = {k: v for k, v in whole.items() if k not in SHAPES or k == place[0]}
    return yaml.safe_dump(whole, sort_keys=False)


def fields() -> set[str]:
    """Every field that a config of the installed mergekit can have, by its class."""
    with quietly():
        from mergekit import common, config
        from mergekit.tokenizer import config as tokenizer

    known = [common.ModelReference, common.ModelPath, config.ConditionalParameter]
    known += [config.InputSliceDefinition, config.InputModelDefinition]
    known += [config.OutputSliceDefinition]
    known += [config.MergeConfiguration, tokenizer.TokenizerConfig]
    return {f"{one.__name__}.{name}" for one in known for name in one.model_fields}


def test_every_field_of_mergekit_is_listed_here() -> None:
    taken = {f"{name}.{field}" for name, fields in TAKEN.items() for field in fields.split()}
    assert fields() == taken | set(REFUSED)


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_is_not_taken_is_refused_by_its_name(field: str) -> None:
    name = field.partition(".")[2]
    with pytest.raises(RecipeError, match=f"'{name}' is not supported"):
        translate(written(*REFUSED[field]), None)


PLACES = [(), ("models", 0), ("models", 0, "model"), ("tokenizer",), ("parameters", "lambda", 0)]


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_key_is_an_error_at_any_depth(place: tuple[Any, ...]) -> None:
    whole: dict[str, Any] = {
        **WHOLE,
        "models": [{**B, "model": {"model": {"path": "me/b"}}}],
        "tokenizer": {"source": "union"},
        "parameters": {"lambda": [{"filter": "mlp", "value": 0.7}, {"value": 1}]},
    }
    with pytest.raises(RecipeError, match="has no 'unknown_key'"):
        translate(written(whole, (*place, "unknown_key"), 1), None)


def options() -> list[str]:
    """The options of mergekit's commands, as they are written there."""
    with quietly():
        from mergekit.options import MergeOptions

    return [f"--{name.replace('_', '-')}" for name in MergeOptions.model_fields]


def test_every_option_of_mergekits_commands_has_a_word_in_its_page() -> None:
    page = (ROOT / "docs" / "howto" / "mergekit.md").read_text(encoding="utf-8")
    assert [option for option in options() if f"`{option}`" not in page] == []
