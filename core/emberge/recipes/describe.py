"""Say what components there are and what each does, made of their fields and docstrings alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.plugins import Plugins

__all__ = [
    "ShippedRecipe",
    "component_page",
    "component_rows",
    "describe_component",
    "list_components",
    "shipped_recipes",
]


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with emberge: where it lies and its opening comment."""

    name: str
    path: Path
    description: str


def component_rows(plugins: Plugins) -> list[dict[str, Any]]:
    """Every component as plain data: kind, name, options, plugin, distribution, version, summary."""
    raise NotImplementedError


def list_components(plugins: Plugins, as_json: bool = False) -> str:
    """The table of components by kind as text, or the rows as JSON; nothing when there are none."""
    raise NotImplementedError


def component_page(plugins: Plugins, name: str) -> list[dict[str, Any]]:
    """All that is known of the component `name` or `plugin:name`, one entry for each kind of that name.

    Raises:
        PluginError: when there is none, with a suggestion.
    """
    raise NotImplementedError


def describe_component(plugins: Plugins, name: str) -> str:
    """What a component does, its options and an example recipe, as text.

    Raises:
        PluginError: when there is none, with a suggestion.
    """
    raise NotImplementedError


def shipped_recipes() -> dict[str, ShippedRecipe]:
    """The recipes that come with emberge, by name (`boom/demo`)."""
    raise NotImplementedError
