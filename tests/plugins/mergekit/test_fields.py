"""Every field of mergekit's configs means something, or is refused by name: none passes in silence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge import RecipeError
from emberge.cli.main import main
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
ENTRY = ("models", 0)
NAME = (*ENTRY, "model")
SOURCE = ("slices", 0, "sources", 1)
ONLY_SOURCE = ("slices", 0, "sources", 0)
ONE_SOURCE = {
    "merge_method": "passthrough",
    "slices": [{"sources": [{"model": "me/a", "layer_range": [0, 4]}]}],
}
LAMBDA = ("parameters", "lambda")
BARE = {"merge_method": "passthrough"}
BARE_INNER = {"models": [{"model": "me/z"}]}
HALF = {"weight": 0.5}
B, C = ({"model": f"me/{name}", "parameters": HALF} for name in "bc")


def module(**inner: Any) -> Mapping[str, Any]:
    return {"default": {"models": [{"model": "me/a"}], **inner}}


def whole(count: int) -> list[Mapping[str, Any]]:
    sources = [{"model": m, "layer_range": [0, count]} for m in ("me/a", "me/b")]
    return [{**one, "parameters": {"weight": 0.5}} for one in sources]


# By mergekit's class and field: a config, a place in it, and two values there that differ in the field.
Case = tuple[Mapping[str, Any], tuple[Any, ...], Any, Any]
TAKEN: Mapping[str, Case] = {
    "MergeConfiguration.modules": (BARE, ("modules",), module(), {"default": BARE_INNER}),
    "MergeConfiguration.slices": (
        WHOLE,
        ("slices",),
        [{"sources": whole(2)}],
        [{"sources": whole(3)}],
    ),
    "MergeConfiguration.models": (SLICED, ("models",), [B], [B, C]),
    "MergeConfiguration.merge_method": (WHOLE, ("merge_method",), "ties", "dare_ties"),
    "MergeConfiguration.base_model": (WHOLE, ("base_model",), "me/a", "me/c"),
    "MergeConfiguration.dtype": (WHOLE, ("dtype",), "float64", "float32"),
    "MergeConfiguration.tokenizer_source": (WHOLE, ("tokenizer_source",), "union", "base"),
    "MergeConfiguration.tokenizer": (WHOLE, ("tokenizer",), {"source": "base"}, {}),
    "MergeConfiguration.out_dtype": (WHOLE, ("out_dtype",), "bfloat16", "float16"),
    "MergeConfiguration.parameters": (WHOLE, ("parameters",), {"lambda": 0.9}, {}),
    "InputModelDefinition.model": (WHOLE, (*ENTRY, "model"), "me/b", "me/c"),
    "InputModelDefinition.parameters": (WHOLE, (*ENTRY, "parameters"), {"weight": 0.1}, HALF),
    "InputSliceDefinition.model": (SLICED, (*SOURCE, "model"), "me/b", "me/c"),
    "InputSliceDefinition.layer_range": (ONE_SOURCE, (*ONLY_SOURCE, "layer_range"), [0, 4], [0, 5]),
    "InputSliceDefinition.parameters": (SLICED, (*SOURCE, "parameters"), {"weight": 0.1}, HALF),
    "OutputSliceDefinition.sources": (SLICED, ("slices", 0, "sources"), whole(1), whole(2)),
    "OutputSliceDefinition.base_model": (
        {**SLICED, "parameters": HALF},
        ("slices", 0, "base_model"),
        "me/a",
        "me/b",
    ),
    "OutputSliceDefinition.parameters": (SLICED, ("slices", 0, "parameters"), {"lambda": 2}, {}),
    "OutputModuleDefinition.slices": (
        {**BARE, "parameters": {"weight": 1}, "merge_method": "linear"},
        ("modules",),
        {"default": {"slices": [{"sources": whole(1)}]}},
        {"default": {"slices": [{"sources": whole(2)}]}},
    ),
    "OutputModuleDefinition.models": (BARE, ("modules",), module(), {"default": BARE_INNER}),
    "OutputModuleDefinition.parameters": (
        BARE,
        ("modules",),
        module(parameters={"scale": 0.5}),
        module(parameters={"scale": 0.25}),
    ),
    "ConditionalParameter.value": (WHOLE, LAMBDA, {"value": 0.7}, {"value": 0.8}),
    "ConditionalParameter.filter": (
        WHOLE,
        LAMBDA,
        [{"filter": "mlp", "value": 0.7}],
        [{"filter": "attn", "value": 0.7}],
    ),
    "ModelReference.model": (WHOLE, NAME, {"model": {"path": "me/b"}}, {"model": {"path": "me/c"}}),
    "ModelReference.lora": (
        WHOLE,
        NAME,
        {"model": {"path": "me/b"}},
        {"model": {"path": "me/b"}, "lora": {"path": "me/lora"}},
    ),
    "ModelPath.path": (WHOLE, NAME, {"model": {"path": "me/b"}}, {"model": {"path": "me/d"}}),
    "ModelPath.revision": (
        WHOLE,
        NAME,
        {"model": {"path": "me/b"}},
        {"model": {"path": "me/b", "revision": "v2"}},
    ),
    "TokenizerConfig.source": (WHOLE, ("tokenizer", "source"), "union", "me/b"),
}
REFUSED: Mapping[str, tuple[Mapping[str, Any], tuple[Any, ...], Any]] = {
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


def recipe_of(text: str) -> str:
    found = translate(text, None)
    assert found is not None
    return found.text


def fields() -> set[str]:
    """Every field that a config of the installed mergekit can have, by its class."""
    with quietly():
        from mergekit import common, config
        from mergekit.tokenizer import config as tokenizer

    known = [common.ModelReference, common.ModelPath, config.ConditionalParameter]
    known += [config.InputSliceDefinition, config.InputModelDefinition]
    known += [config.OutputSliceDefinition, config.OutputModuleDefinition]
    known += [config.MergeConfiguration, tokenizer.TokenizerConfig]
    return {f"{one.__name__}.{name}" for one in known for name in one.model_fields}


def test_every_field_of_mergekit_is_listed_here() -> None:
    assert fields() == set(TAKEN) | set(REFUSED)


def test_every_class_of_mergekits_configs_is_looked_at() -> None:
    with quietly():
        from mergekit import config
        from mergekit.tokenizer import config as tokenizer
        from pydantic import BaseModel

    reading = {"ConfigReader"}  # it looks values up, and is no part of a config
    rules = {"TokenEmbeddingConfig", "ModelTokenEmbedding", "ZeroEmbedding"}  # of refused `tokens`
    classes = {
        one.__name__
        for module in (config, tokenizer)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, BaseModel) and one is not BaseModel
    }
    assert classes - reading - rules <= {field.partition(".")[0] for field in fields()}


@pytest.mark.parametrize("field", TAKEN)
def test_a_field_that_is_taken_means_something(field: str) -> None:
    config, place, one, other = TAKEN[field]
    texts = [written(config, place, value) for value in (one, other)]
    with quietly():
        from mergekit.config import MergeConfiguration

        for text in texts:
            MergeConfiguration.model_validate(yaml.safe_load(text))  # mergekit takes them as well
    assert recipe_of(texts[0]) != recipe_of(texts[1])


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_is_not_taken_is_refused_by_its_name(field: str) -> None:
    name = field.partition(".")[2]
    with pytest.raises(RecipeError, match=f"'{name}' is not supported"):
        translate(written(*REFUSED[field]), None)


def depths(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where mappings stand in a config; in `parameters` names are free."""
    if isinstance(value, list):
        return [p for i, one in enumerate(value) for p in depths(one, (*place, i))]
    if not isinstance(value, dict):
        return []
    free = place and place[-1] in ("parameters", "modules")
    own = [] if free else [place]
    return own + [p for key, one in value.items() for p in depths(one, (*place, key))]


@pytest.mark.parametrize("field", TAKEN)
def test_an_unknown_key_is_an_error_at_any_depth(field: str) -> None:
    config, place, value, _ = TAKEN[field]
    whole = yaml.safe_load(written(config, place, value))
    for depth in depths(whole):
        text = written(whole, (*depth, "unknown_key"), 1)
        with pytest.raises(RecipeError, match="has no 'unknown_key'"):
            translate(text, None)


def options() -> list[str]:
    """The options of mergekit's commands, as they are written there."""
    with quietly():
        from mergekit.options import MergeOptions

    return [f"--{name.replace('_', '-')}" for name in MergeOptions.model_fields]


def test_every_option_of_mergekits_commands_has_a_word_in_the_readme() -> None:
    page = (ROOT / "plugins" / "README.md").read_text(encoding="utf-8")
    assert [option for option in options() if f"`{option}`" not in page] == []


def test_an_option_of_mergekits_commands_is_ours_or_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(WHOLE))
    for option in options():
        if option == "--quiet":
            continue
        assert main(["merge", str(path), "--out", str(tmp_path / "out"), option]) == 2
        assert f"there is no option '{option}'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
