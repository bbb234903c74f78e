"""The JSON Schema takes what the grammar takes and flags what an editor can flag."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from emberge import Plugins, load_plugins, load_recipe
from emberge.recipes import build_recipe_schema, list_shipped_recipes
from emberge.yaml_nodes import read_yaml, to_plain

from tests.support.reading import blend, faults, fit, plugins, read


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(build_recipe_schema(plugins()))


def data(text: str) -> Any:
    root = read_yaml(text, str, [])
    assert root is not None
    return to_plain(root)


def flaws(text: str) -> Iterator[str]:
    for error in validator().iter_errors(data(text)):
        yield from _leaves(error)


def _leaves(error: jsonschema.ValidationError) -> Iterator[str]:
    yield f"{error.json_path}: {error.message}"
    for inner in error.context or ():
        yield from _leaves(inner)


def test_the_schema_is_plain_json_and_of_no_plugins_takes_no_step() -> None:
    schema = build_recipe_schema(plugins())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    schema = build_recipe_schema(Plugins())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors({"steps": {"a": {"fit": {}}}}))


EVERYTHING = """
seed: 3
x-common: &common {model: ./base, data: $corpus}
steps:
  corpus: {corpus: 1600}
  members:
    foreach: {ratio: [0.2, 0.4], lang: [en, de]}
    fit:
      <<: *common
      notes: {lang: $lang}
      log: logs/$lang.txt
      sampler:
        - bag: $ratio
        - acme:shuffle: {batch_size: {default: 4, by_task: {sts: 8}}}
      loss: {default: contrast, by_task: {sts: [rank, {contrast: {weight: 2}}], clustering: mask}}
      backbone: {plain: {pooling: cls, prompts: {query: "q: "}}}
      betas: [0.9, 0.99]
      max_steps:
  boom:
    foreach: [{strategy: mean}, {strategy: {ties: 0.3}}]
    blend:
      models: [{model: $members, group: ir, weight: [{filter: mlp, value: [0, 1]}, {value: 2}]}, ./x]
      weights: size
      strategy: $strategy
      rules: [{filter: Norm, strategy: [{grouped: {by: mean}}, {ties: {density: [0.2, 0.4]}}]}]
  scores:
    rate:
      models: [./base, $members]
      evaluators: {board: {tasks_: a, data: $corpus}, acme:board: }
      require: [{model: $boom, not_worse_than: [$members], margin: 1e-3}]
  page: {tell: {of: [$scores, $members]}}
"""


def test_every_kind_of_value_that_a_recipe_may_have_is_valid() -> None:
    assert len(read(EVERYTHING).steps) == 9
    assert list(flaws(EVERYTHING)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (fit("max_steps: 1.5"), "1.5 is not of type 'integer'"),
        (fit("precision: float8"), "'float8' is not one of ['auto', 'bfloat16']"),
        (fit("loss: {contrast: {temperature: 0}}"), "0 is less than or equal to the minimum of 0"),
        (blend("strategy: [{cut: {density: 2}}, mean]"), "2 is greater than the maximum of 1"),
        (blend("strategy: mean", "rules: [{filter: x}]"), "'strategy' is a required property"),
        ("steps: {a: {corpus: 1, norms: m}}", "has too many properties"),
        ("steps: {a: {tell: {of: ./x}}}", "'./x' does not match"),
        ("sede: 1\nsteps: {a: {corpus: 1}}", "'sede' does not match any of the regexes"),
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(text: str, said: str) -> None:
    assert faults(text)
    assert any(said in flaw for flaw in flaws(text)), list(flaws(text))


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        (fit("sampler: [{bag: {ration: 0.2}}, shuffle]"), "fit.sampler[0].bag", "ration"),
        (fit("loss: {by_tsak: {sts: rank}}"), "fit.loss", "by_tsak"),
        (blend("strategy: {ties: {densty: 0.5}}"), "blend.strategy.ties", "densty"),
        (
            blend("strategy: mean", "rules: [{filter: x, strategy: {grouped: {bye: mean}}}]"),
            "blend.rules[0].strategy.grouped",
            "bye",
        ),
        ("steps: {a: {fti: {}}}", "", "fti"),
    ],
)
def test_a_misspelt_word_is_the_only_error_that_is_reported(
    text: str, place: str, word: str
) -> None:
    """No editor is left with the message that none of many forms fits."""
    (flaw,) = flaws(text)
    where, message = flaw.split(": ", 1)
    assert re.sub(r"^\$\.steps\.\w+\.?", "", where) == place
    assert message.startswith(f"'{word}' is not one of") or f"('{word}' was unexpected)" in message


def test_options_come_with_documentation_defaults_and_choices_by_plain_names() -> None:
    definitions = build_recipe_schema(plugins())["$defs"]
    options = definitions["loss.acme.contrast"]["properties"]
    assert options["temperature"]["description"] == "What similarities are divided by."
    assert options["temperature"]["default"] == 0.05
    assert {"enum": ["auto", "in_batch"]} in options["negatives"]["anyOf"]
    # An inherited option is documented by the contract.
    assert options["weight"]["description"].startswith("`weight` is the loss's factor")
    ties = definitions["merge_strategy.acme.ties"]["properties"]
    assert list(ties) == ["density", "scale", "normalize"]
    assert ties["density"]["default"] == 0.2
    assert definitions["step.acme.fit"]["properties"]["sampler"]["default"] == "shuffle"
    names = build_recipe_schema(plugins())["$defs"]["Sampler.name"]["else"]
    texts = dict(zip(names["enum"], names["enumDescriptions"], strict=True))
    assert texts["bag"] == texts["acme:bag"]


def test_every_shipped_recipe_is_read_and_valid() -> None:
    shipped = list_shipped_recipes()
    folder = shipped["boom/demo"].path.parent.parent
    installed = load_plugins([*folder.rglob("*.py")], block=())
    checking = jsonschema.Draft202012Validator(build_recipe_schema(installed))
    assert "boom/demo" in shipped
    for recipe in shipped.values():
        text = recipe.path.read_text(encoding="utf-8")
        assert [error.message for error in checking.iter_errors(data(text))] == [], recipe.name
        assert load_recipe(recipe.path, installed).steps
