"""Reading recipes that use the small plugin of `acme`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge import Plugins, RecipeError, parse_recipe
from emberge.recipes import Recipe

from tests.support import acme

FILE = Path("recipes/r.yaml")


def plugins() -> Plugins:
    """A process that has only the small plugin."""
    found = Plugins()
    found.register(acme, "acme", "acme-tools", "1.0")
    return found


def read(text: str, *overrides: str) -> Recipe:
    """The recipe of a text that stands in `FILE`."""
    return parse_recipe(text, plugins(), path=FILE, overrides=overrides)


def step(text: str, *overrides: str) -> Any:
    """The one step of a recipe."""
    (only,) = read(text, *overrides).steps
    return only.step


def faults(text: str, *overrides: str) -> list[str]:
    """What is wrong with a recipe, each as `line: message` or as it stands."""
    with pytest.raises(RecipeError) as caught:
        read(text, *overrides)
    return [str(problem).removeprefix(f"{FILE}:") for problem in caught.value.problems]


def fit(*lines: str) -> str:
    """A recipe with one training whose options go on from line 6."""
    body = "".join(f"      {line}\n" for line in lines)
    return f"steps:\n  a:\n    fit:\n      model: ./m\n      data: d.jsonl\n{body}"


def blend(*lines: str) -> str:
    """A recipe with one merge whose options go on from line 5."""
    body = "".join(f"      {line}\n" for line in lines)
    return f"steps:\n  a:\n    blend:\n      models: [./m, ./n]\n{body}"
