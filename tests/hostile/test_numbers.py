"""Numbers of recipes and verbs are finite, and within the limits that their option declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge import PerModel, RecipeError, load_plugins, parse_recipe
from emberge.cli.main import main
from emberge.contracts import is_sound_number
from emberge.options import forms, options_of

# A number of a step's options, and the line of a recipe that has it: all parts of the grammar.
LINES = {
    "a number": ("train", "learning_rate: {}"),
    "a pair": ("deduplicate", "data: [{{path: ./d.jsonl, score_range: [0, {}]}}]"),
    "by task": ("train", "max_length: {{by_task: {{sts: {}}}}}"),
    "a weight": ("merge", "models: [{{model: ./a, weight: {}}}, ./b]"),
    "over depth": ("merge", "models: [{{model: ./a, weight: [0.5, {}]}}, ./b]"),
    "a method's": ("merge", "strategy: {{slerp: {{t: {}}}}}"),
    "of plain data": ("random_model", "config: {{model_type: bert, hidden_size: {}}}"),
}
REST = {
    "train": "model: ./m, data: ./d.jsonl",
    "deduplicate": "jaccard: 0.8",
    "merge": "template: ./a",
    "random_model": "data: ./d.jsonl",
}
NUMBERS = (".inf", "-.inf", ".nan", "1e999", "1e308", "100000000000000000000")


def problems_of(kind: str, line: str) -> str:
    """What is wrong with a recipe of one step, whose option stands in line 4."""
    rest = "".join(f"      {one}\n" for one in REST[kind].split(", "))
    text = f"steps:\n  a:\n    {kind}:\n      {line}\n{rest}"
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, load_plugins(), path=Path("r.yaml"))
    return str(caught.value)


@pytest.mark.parametrize("place", LINES)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_is_not_finite_is_refused_at_its_line(place: str, number: str) -> None:
    if place == "over depth" and number == NUMBERS[-1]:
        number = "-1e39"  # a weight may be whole or not
    kind, line = LINES[place]
    found = problems_of(kind, line.format(number))
    assert "r.yaml:4: option" in found
    assert "number" in found


@pytest.mark.parametrize("number", NUMBERS)
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


@pytest.mark.parametrize("weights", ["1e308,1", ".inf,1", "nan,1"])
def test_weights_of_the_verb_merge_are_finite(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["merge", "a", "b", "--strategy", "linear", "--weight", weights]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "weight" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["run", "r.yaml", "--out", "o", "--ranks", "0"],
        ["merge", "a", "b", "--out", "o", "--workers", "-1"],
    ],
)
def test_a_count_of_a_verb_is_at_least_one(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"argument {words[-2]}" in capsys.readouterr().err


# Options of numbers that no limit can be declared for: another tool's own options, by its own names.
ANY = {"ChatServer.request", "RandomModel.config"}


def test_every_number_of_every_component_declares_its_limits() -> None:
    found = dict(numbers())
    assert len(found) > 150
    missing = {name for name, form in found.items() if not states_limits(form)}
    assert missing == ANY


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
        for option in (
            options_of(one).values()
            if isinstance(one, type) and dataclasses.is_dataclass(one)
            else ()
        ):
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


def test_schedules_of_python_take_finite_numbers_alone() -> None:
    for value in (float("inf"), 1e39, [0.0, float("nan")]):
        with pytest.raises(ValueError, match="needs"):
            PerModel(value)
    assert is_sound_number(3.4e38)
    assert not is_sound_number(True)
