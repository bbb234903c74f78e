"""The JSON Schema of a recipe, with the options of every installed plugin, so that editors can help."""

from __future__ import annotations

from typing import Any

from emberge.contracts import Step
from emberge.options import SchemaWriter
from emberge.plugins import Plugins
from emberge.recipes.parse.foreach import NAME

Schema = dict[str, Any]


def build_recipe_schema(plugins: Plugins) -> Schema:
    """Return the JSON Schema (2020-12) of recipes that use these plugins.

    The schema has every component's options with documentation and defaults, and refuses all other options.
    Every value may be a `$variable`.

    Raises:
        PluginError: if an option's type cannot be found or expressed in a recipe.
    """
    writer = SchemaWriter(plugins)
    steps = {"type": "object", "minProperties": 1, "additionalProperties": False}
    steps["patternProperties"] = {f"^{NAME}$": _build_step_schema(writer)}
    steps["description"] = "Steps by id; each is `kind: {options}`, with or without `foreach`."
    seed: Schema = {"type": "integer", "minimum": 0, "default": 0}
    seed["description"] = "What every draw of the recipe follows from."
    name: Schema = {"type": "string", "minLength": 1}
    plugins_needed: Schema = {"anyOf": [name, {"type": "array", "items": name}]}
    plugins_needed["description"] = (
        "Plugins that the recipe needs: files, relative to the recipe, or names of installed plugins."
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "emberge recipe",
        "type": "object",
        "properties": {"seed": seed, "plugins": plugins_needed, "steps": steps},
        "patternProperties": {"^x-": {}},
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": writer.definitions,
    }


def _build_step_schema(writer: SchemaWriter) -> Schema:
    """Return the schema of a step: `kind: {options}`, with `foreach` at the same level."""
    values = {"type": "array", "minItems": 1}
    product = {"type": "object", "minProperties": 1, "additionalProperties": values}
    rows = {"type": "array", "minItems": 1, "items": {"type": "object", "minProperties": 1}}
    foreach = {
        "description": "{a: [values], b: [values]} for the product, or a list of rows {a: value}.",
        **{"if": {"type": "object"}, "then": product, "else": rows},
    }
    return {
        "type": "object",
        "properties": {"foreach": foreach, **writer.write_components_by_name(Step)},
        "additionalProperties": False,
        "if": {"required": ["foreach"]},
        "then": {"minProperties": 2, "maxProperties": 2},
        "else": {"minProperties": 1, "maxProperties": 1},
    }
