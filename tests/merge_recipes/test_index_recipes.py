"""Recipes that change the model and keep the vectors: arms that differ in one thing alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from emberge import load_plugins, load_recipe
from emberge.recipes import shipped_recipes

INDEX = {name: one for name, one in shipped_recipes().items() if name.startswith("index/")}


@cache
def steps(name: str) -> Mapping[str, Any]:
    """The concrete steps of a shipped recipe by id."""
    return {one.id: one.step for one in load_recipe(INDEX[name].path, plugins=load_plugins()).steps}


def group(name: str) -> list[Any]:
    return [step for id_, step in steps("index/laptop").items() if id_.partition(".")[0] == name]


@pytest.mark.parametrize("name", ["index/demo", "index/laptop", "index/other_family"])
def test_a_recipe_is_understood_and_says_how_it_is_run(name: str) -> None:
    assert steps(name)
    header = INDEX[name].description
    assert f"emberge run {name} --out" in header
    for word in ("What it makes", "Command", "Time", "Result"):
        assert re.search(rf"^{word}\b", header, re.MULTILINE), word


def test_fits_differ_in_their_texts_alone() -> None:
    names = [f"{place}_{count}" for place in ("inside", "outside") for count in (250, 1000, 4000)]
    fits = [one for name in names for one in group(name)]
    assert len(fits) == 6 * 3
    new = {repr(dataclasses.replace(one, data=(), new=fits[0].new)) for one in fits}
    assert len(new) == 1
    assert {one.new.step for one in fits} == {f"new.seed={seed}" for seed in (1, 2, 3)}


def test_texts_outside_are_of_no_set_that_is_searched() -> None:
    (evaluator,) = steps("index/laptop")["documents"].evaluators
    searched = {name for entry in evaluator.data for name in entry.only}
    assert len(searched) == 5  # and the two of the corpus: stdlib, numpy
    inside, outside = group("inside_4000")[0].data, group("outside_4000")[0].data
    # Of the collections that are searched, and functions of two packages that are not.
    assert {entry.name or str(entry.path) for entry in inside} == {*searched, "$packages"}
    files = {str(entry.path) for entry in outside}
    assert not any(f"/{name}/" in file for name in searched for file in files)
    assert not set(steps("index/laptop")["packages"].packages) & {"stdlib", "numpy"}


def test_models_that_keep_the_space_differ_from_the_new_one_in_their_loss_alone() -> None:
    def plain(one: Any) -> str:
        return repr(dataclasses.replace(one, loss=group("new")[0].loss, seed=0))

    kept = group("kept")
    assert len({plain(one) for one in [*group("new"), *kept]}) == 1
    weights = sorted(one.loss.default[1].weight for one in kept)
    assert weights == [0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 1, 1, 1]


def test_the_chain_has_no_direct_map() -> None:
    (evaluator,) = steps("index/laptop")["documents"].evaluators
    (chain,) = [one for one in evaluator.documents_of if one.label == "two steps"]
    found = {one.step for one in chain.translations}
    assert found == {
        f"{name}.seed={seed}" for name in ("to_between", "from_between") for seed in (1, 2, 3)
    }
    (first,) = {repr(dataclasses.replace(one, new=one.old)) for one in group("to_between")}
    assert first in {repr(dataclasses.replace(one, new=one.old)) for one in group("inside_1000")}


def test_the_rotation_is_fitted_on_the_texts_of_the_smaller_map() -> None:
    found = steps("index/other_family")
    assert found["rotation"] == dataclasses.replace(found["by_1000"], kind="orthogonal")
    assert found["by_1000"].old != found["by_1000"].new
