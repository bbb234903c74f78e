"""Shipped recipes read for comparison with what their papers print."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from emberge import DataEntry, ModelRef, load_plugins, load_recipe
from emberge.data import load_catalogue
from emberge.recipes import list_shipped_recipes


@cache
def steps_of(recipe: str) -> Mapping[str, Any]:
    """Return the concrete steps of a shipped recipe by id, anchors and `foreach` resolved."""
    path = list_shipped_recipes()[recipe].path
    found = load_recipe(path, plugins=load_plugins(sorted(path.parent.glob("*.py"))))
    return {one.id: one.step for one in found.steps}


def group(recipe: str, step: str) -> list[Any]:
    """Return the instances that a step of a recipe has, one without `foreach`."""
    found = [one for id_, one in steps_of(recipe).items() if id_.partition(".")[0] == step]
    assert found, f"{recipe} has no step {step}"
    return found


def hub_model(recipe: str, reference: ModelRef) -> str:
    """Return the id of the model outside the recipe that a reference comes from, by first parents."""
    while reference.step is not None:
        step = steps_of(recipe)[reference.step]
        first = step.models[0] if hasattr(step, "models") else step.model
        reference = first if isinstance(first, ModelRef) else first.model
    return reference.text


def sets_of(recipe: str, corpus: str) -> Mapping[str, DataEntry]:
    """Return the training sets of a catalogue beside a recipe, by name."""
    folder = list_shipped_recipes()[recipe].path.parent / corpus
    return {str(one.name): one for one in load_catalogue(folder).train}
