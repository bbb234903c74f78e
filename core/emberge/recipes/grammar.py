"""Read a recipe: YAML becomes steps of built components, and every fault is named with `file:line`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe

__all__ = ["load_recipe", "parse_recipe"]


def load_recipe(path: Path, plugins: Plugins, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file.

    Raises:
        RecipeError: with every fault of the recipe, each with `file:line`.
    """
    return parse_recipe(path.read_text(encoding="utf-8"), plugins, path=path, overrides=overrides)


def parse_recipe(
    text: str, plugins: Plugins, *, path: Path | None = None, overrides: Sequence[str] = ()
) -> Recipe:
    """Read a recipe's text; paths in it are relative to the folder of `path`.

    Raises:
        RecipeError: with every fault of the recipe, each with `file:line`.
    """
    raise NotImplementedError
