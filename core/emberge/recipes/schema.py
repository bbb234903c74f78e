"""The JSON Schema of a recipe, with the options of every installed plugin, for editors."""

from __future__ import annotations

from typing import Any

from emberge.plugins import Plugins

__all__ = ["recipe_schema"]


def recipe_schema(plugins: Plugins) -> dict[str, Any]:
    """The JSON Schema (2020-12) of recipes that use these plugins."""
    raise NotImplementedError
