"""Recipes as Python data: mappings, lists, numbers, texts, paths and plain dataclasses."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

from emberge.errors import Problem, RecipeError


def to_yaml_data(value: Any, place: str) -> Any:
    """Return a value as data that YAML has: a path or result becomes text, a dataclass its fields.

    Raises:
        RecipeError: if YAML has no such value; names the value's place in the data, `recipe.steps.a.merge`.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return path_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_yaml_data(inner, f"{place}.{key}") for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [to_yaml_data(inner, f"{place}.{index}") for index, inner in enumerate(value)]
    kind = type(value).__name__
    message = f"a recipe has mappings, lists, texts, numbers and paths, no {kind}"
    raise RecipeError(Problem(message, place))


def path_text(path: os.PathLike[str]) -> str:
    """Return a path as a recipe names it: `./models/one`, as `models/one` would be an id of the hub."""
    text = os.fspath(path)
    is_clear = os.path.isabs(text) or text.startswith(".")
    return (text if is_clear else f"./{text}").replace("$", "$$")
