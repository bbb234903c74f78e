"""An option that would have no effect is refused at its line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import pytest
from emberge import NumberRange, RecipeError, Requires, load_plugins, parse_recipe
from emberge.recipes.options.option_forms import options_of


def refused(text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, load_plugins(), path=Path("r.yaml"))
    return str(caught.value)


LOSSES = {
    "infonce: {guide_margin: 0.1}": "`guide`",
}


@pytest.mark.parametrize("loss", LOSSES)
def test_an_idle_option_of_a_loss_is_refused(loss: str) -> None:
    text = (
        "steps:\n  a:\n    train:\n      model: ./m\n      data: ./d.jsonl\n"
        f"      loss: {{{loss}}}\n"
    )
    assert "r.yaml:6: " in (found := refused(text))
    assert LOSSES[loss] in found


def test_an_option_with_the_one_that_it_belongs_to_is_taken() -> None:
    text = (
        "steps:\n  a:\n    train:\n      model: ./m\n      data: ./d.jsonl\n"
        "      loss: {infonce: {guide: {model: ./g}, guide_margin: 0.1}}\n"
        "      sampler: {batch_shuffle: {batch_size: 2}}\n      max_steps: 1\n"
    )
    assert len(parse_recipe(text, load_plugins()).steps) == 1


def test_what_an_option_requires_is_an_option_beside_it() -> None:
    found = 0
    for one in load_plugins().components:
        for owner in getattr(one.type, "links", (one.type,)):
            options = options_of(owner) if dataclasses.is_dataclass(owner) else {}
            for option in options.values():
                if option.requires is not None:
                    found += 1
                    assert set(option.requires.others) <= set(options)
    assert found


def test_one_of_several_is_enough_and_limits_stay() -> None:
    mark = Requires("left", "right")
    assert mark.describe_missing({"left": (), "right": None}) == "`left` or `right`"
    assert not mark.describe_missing({"left": (), "right": ("x",)})
    kind: Any = Annotated[Annotated[int, NumberRange(least=1)], mark]
    assert kind.__metadata__ == (NumberRange(least=1), mark)


def test_one_token_of_a_text_is_no_length() -> None:
    text = (
        "steps:\n  a:\n    train:\n      model: ./m\n      data: ./d.jsonl\n      loss: infonce\n"
        "      max_length: 1\n"
    )
    assert "r.yaml:7: option 'max_length'" in refused(text)
