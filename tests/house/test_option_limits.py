"""Numbers of recipes and verbs are finite and within limits, which every option of a number declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge import PerModel, RecipeError, load_plugins, parse_recipe
from emberge.cli.main import main
from emberge.options import forms, read_options

TRAIN = "train: {{model: ./m, data: [a.jsonl], {}}}"
# Numbers that are not finite, and numbers beyond limits, in all parts of the grammar.
BEYOND = {
    "learning_rate": TRAIN.format("learning_rate: .inf"),
    "warmup_steps": TRAIN.format("warmup_steps: -1"),
    "max_length": TRAIN.format("max_length: {by_task: {sts: 1e999}}"),
    "temperature": TRAIN.format("loss: {infonce: {temperature: 0}}"),
    "tasks": TRAIN.format("sampler: [{keep: {tasks: retrievel}}, batch_shuffle]"),
    "batch_size": TRAIN.format("sampler: {batch_shuffle: {batch_size: {by_task: {sts: 0}}}}"),
    "score_range": "deduplicate: {data: [{path: ./d.jsonl, score_range: [0, .nan]}]}",
    "jaccard": "deduplicate: {data: [a.jsonl], jaccard: 1.5}",
    "weight": "merge: {models: [{model: ./a, weight: [0.5, -1e39]}, ./b], template: ./a}",
    "t": "merge: {models: [./a, ./b], strategy: {slerp: {t: -.inf}}}",
    "config": "random_model: {data: a.jsonl, config: {model_type: bert, hidden_size: 1e999}}",
}


@pytest.mark.parametrize("option", BEYOND)
def test_a_number_beyond_its_limits_is_refused_with_its_place(option: str) -> None:
    text = f"steps:\n  s: {{{BEYOND[option]}}}\n"
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, load_plugins(), path=Path("r.yaml"))
    (said,) = [line for line in str(caught.value).splitlines() if f"'{option}" in line]
    assert "r.yaml:2: " in said
    assert "needs" in said or "number" in said


@pytest.mark.parametrize("number", [".inf", "1e308"])
def test_an_option_set_by_hand_and_a_variable_keep_the_same_rule(number: str) -> None:
    text = "steps:\n  a:\n    train: {model: ./m, data: ./d.jsonl}\n"
    with pytest.raises(RecipeError, match=r"--set a\.train\.learning_rate"):
        parse_recipe(text, load_plugins(), overrides=[f"a.train.learning_rate={number}"])
    text = (
        f"steps:\n  a:\n    foreach: {{x: [{number}]}}\n"
        "    train: {model: ./m, data: ./d.jsonl, learning_rate: $x}\n"
    )
    with pytest.raises(RecipeError, match=r"r\.yaml:3: option 'learning_rate'"):
        parse_recipe(text, load_plugins(), path=Path("r.yaml"))


@pytest.mark.parametrize(
    "words",
    [
        "merge a b --out o --strategy linear --weight nan,1",
        "merge a b --out o --workers -1",
        "run r.yaml --out o --ranks 0",
    ],
)
def test_numbers_of_verbs_keep_limits(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert words.split()[-2].lstrip("-") in capsys.readouterr().err


def test_schedules_of_python_take_finite_numbers_alone() -> None:
    for value in (float("inf"), 1e39, [0.0, float("nan")]):
        with pytest.raises(ValueError, match="needs"):
            PerModel(value)


def test_every_number_of_every_component_declares_its_limits() -> None:
    found = dict(numbers())
    assert len(found) > 150
    # No limit can be declared for another tool's own options, by its own names.
    missing = {name for name, form in found.items() if not states_limits(form)}
    assert missing == {"RandomModel.config"}


def states_limits(form: Any) -> bool:
    """Whether a form has limits, be they those of any finite number; a schedule has its own."""
    return isinstance(form, forms.Schedule) or (
        isinstance(form, forms.Value) and form.limits is not None
    )


def numbers() -> Iterator[tuple[str, Any]]:
    """Every option of numbers, or of plain data, of all components and of what they nest."""
    seen: list[object] = []
    waiting = [one.type for one in load_plugins().components]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.append(one)
        waiting += getattr(one, "links", ())
        has_options = isinstance(one, type) and dataclasses.is_dataclass(one)
        for option in read_options(one).values() if has_options else ():
            for form in parts_of(option.form):
                if isinstance(form, forms.Record):
                    waiting.append(form.type)
                elif is_numeric(form):
                    yield f"{one.__name__}.{option.name}", form


def parts_of(form: Any) -> Iterator[Any]:
    """A form and all inside it."""
    yield form
    for inner in (*getattr(form, "items", ()), *getattr(form, "forms", ())):
        yield from parts_of(inner)
    if hasattr(form, "item"):
        yield from parts_of(form.item)


def is_numeric(form: Any) -> bool:
    if isinstance(form, forms.Value):
        return getattr(form.type, "__origin__", form.type) in (int, float)
    return isinstance(form, forms.Anything | forms.Schedule)
