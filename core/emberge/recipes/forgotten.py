"""Keys whose rows an OUT has forgotten, kept beside its results; no step of a run there gets these rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from emberge.component_parts import replace_parts
from emberge.data import DataEntry, KeyList
from emberge.files import write_json
from emberge.recipes.recipe import Recipe

FORGOTTEN = "forgotten.json"
"""Name of the file in OUT with the salted hashes of forgotten keys."""


def read_forgotten(out: Path) -> KeyList | None:
    """Return the keys that the OUT has forgotten; None if there are none.

    Raises:
        DataError: if the file is damaged.
    """
    path = out / FORGOTTEN
    return KeyList.read(path) if path.is_file() else None


def add_forgotten(out: Path, digests: Iterable[bytes]) -> KeyList:
    """Add keys, as hashes without salt, to those that the OUT has forgotten, and return all of them.

    Later runs into this OUT leave the rows of these keys out.

    Raises:
        DataError: if the OUT's file is damaged.
    """
    known = read_forgotten(out)
    keys = KeyList.of(digests) if known is None else known.with_keys(digests)
    write_json(out / FORGOTTEN, keys.plain)
    return keys


def without_forgotten(recipe: Recipe, out: Path) -> Recipe:
    """Return the recipe with every data entry leaving out the rows that the OUT has forgotten."""
    path = out / FORGOTTEN
    return without_rows(recipe, path) if path.is_file() else recipe


def without_rows(recipe: Recipe, keys: Path) -> Recipe:
    """Return the recipe with every data entry leaving out the rows of the keys that a file lists."""
    path = keys.absolute()
    steps = tuple(
        dataclasses.replace(
            step, step=replace_parts(step.step, DataEntry, lambda entry: entry.forgetting(path))
        )
        for step in recipe.steps
    )
    return dataclasses.replace(recipe, steps=steps)
