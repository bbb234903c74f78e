"""The reading of a recipe from its file, its shipped name, a text or Python data to built steps."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge.errors import Problem, RecipeError, suggest
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.build_steps import RecipeReader, sort_problems
from emberge.recipes.parse.overrides import override
from emberge.recipes.parse.shipped import list_shipped_recipes
from emberge.recipes.recipe import Recipe, write_path_reference
from emberge.yaml_nodes import (
    Fields,
    Items,
    Node,
    Scalar,
    build_node,
    describe_node,
    read_yaml,
    write_yaml,
)


def read_recipe_text(path: Path) -> str:
    """Read the text of a recipe file.

    Raises:
        RecipeError: if there is no such file, or it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"this is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise RecipeError(Problem(message, str(path))) from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from None


def translate_recipe(text: str, plugins: Plugins, path: Path | None = None) -> str | None:
    """Return another tool's recipe as one of ours, or None if no plugin recognises the text.

    Raises:
        RecipeError: if the other tool's recipe is wrong.
    """
    translated: str | None = plugins.hook.read_recipe(text=text, path=path)
    return translated


def read_named_recipe(
    name: str, plugins: Plugins, overrides: Sequence[str], *, allow_plugins: bool = False
) -> Recipe:
    """Return the recipe that a command line names, with its `--set` options applied.

    The plugin files of a shipped recipe come with emberge, and need no `allow_plugins`.

    Raises:
        RecipeError: if there is no such recipe, or it has problems; has all of them.
    """
    path = Path(name)
    if not path.is_file():
        shipped = list_shipped_recipes()
        if name not in shipped:
            raise RecipeError(_describe_missing_recipe(path, shipped))
        path, allow_plugins = shipped[name].path, True
    return load_recipe(path, plugins, overrides, allow_plugins=allow_plugins)


def convert_to_recipe(
    recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str], plugins: Plugins
) -> Recipe:
    """Return the recipe that Python code gives: as it is, else read from data, a file or a shipped name.

    Raises:
        RecipeError: if there is no such recipe, or it has problems; has all of them.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Mapping):
        return parse_recipe(recipe, plugins)
    return read_named_recipe(os.fspath(recipe), plugins, ())


def _describe_missing_recipe(path: Path, shipped: Iterable[str]) -> str:
    if path.is_dir():
        return f"{path} is a folder; name the recipe file in it"
    sibling_paths = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
    hint = suggest(str(path), [*shipped, *map(str, sibling_paths)])
    return f"{path}: there is no such file, nor a shipped recipe of this name{hint}"


def load_recipe(
    path: Path | str,
    plugins: Plugins | None = None,
    overrides: Sequence[str] = (),
    *,
    allow_plugins: bool = False,
) -> Recipe:
    """Read a recipe file; `overrides` have the form of `--set`: `step.kind.option=value`.

    The other arguments are those of `parse_recipe`.

    Raises:
        RecipeError: if there are problems; has every problem of the recipe, each with `file:line`.
    """
    path = Path(path)
    return parse_recipe(
        read_recipe_text(path), plugins, path=path, overrides=overrides, allow_plugins=allow_plugins
    )


def parse_recipe(
    recipe: str | Mapping[str, Any],
    plugins: Plugins | None = None,
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
) -> Recipe:
    """Read a recipe from its text, or from Python data of the same form: `{"steps": {id: {kind: options}}}`.

    Paths in it are relative to the folder of `path`, or else to the current folder. `plugins` defaults to all
    that are installed; with `allow_plugins`, the plugin files that the recipe names are loaded into it. In
    Python data, a path or a step's result may stand for its text.

    Raises:
        RecipeError: if there are problems; has every problem of the recipe, each with `file:line`, or with
            its place in the data: `recipe.steps.boom.merge.strategy`.
    """
    plugins = plugins or load_plugins()
    problems: list[Problem] = []
    if isinstance(recipe, str):
        text, format_place = _translate_text(recipe, plugins, path)
        root = read_yaml(text, format_place, problems)
    else:
        data = to_yaml_data(recipe, "recipe")
        text, root = write_yaml(data), build_node(data, "recipe", deep_places=True)
    if root is not None and not isinstance(root, Fields):
        message = f"a recipe is a mapping with `steps`, not {describe_node(root)}"
        problems.append(Problem(message, root.where))
    if not isinstance(root, Fields):
        raise RecipeError(problems)
    folder = path.parent if path else Path()
    needed = root.entries.get("plugins")
    if needed is not None:
        missing = _load_needed_plugins(needed, plugins, folder, allowed=allow_plugins)
        if missing:  # the names that they would add are not known
            raise RecipeError(sort_problems([*problems, *missing]))
    if overrides:
        root = override(root, overrides, problems)
    built = RecipeReader(plugins, folder, problems).read(root)
    return dataclasses.replace(built, path=path, text=text, overrides=tuple(overrides))


def _load_needed_plugins(
    node: Node, plugins: Plugins, folder: Path, *, allowed: bool
) -> list[Problem]:
    """Load the plugin files that a recipe names; return a problem for each plugin that is missing.

    A file is code, which a recipe from somewhere else must not run unasked. It is loaded if the user has
    `allowed` it; a file that was loaded already needs no permission.

    Raises:
        PluginError: if a file cannot be imported, or breaks a contract.
    """
    problems = []
    for item in node.items if isinstance(node, Items) else (node,):
        value = item.value if isinstance(item, Scalar) else None
        if not isinstance(value, str) or not value:
            message = f"plugins are files or names of installed plugins, not {describe_node(item)}"
            problems.append(Problem(message, item.where))
        elif value.endswith(".py") or "/" in value:
            file = folder / Path(value).expanduser()
            message = _load_file(file, value, plugins, allowed)
            problems += [Problem(message, item.where)] if message else []
        elif not plugins.manager.has_plugin(value):
            installed = [name for name, _ in plugins.manager.list_name_plugin()]
            hint = suggest(value, installed) or "; install it, or name a file such as ./mine.py"
            message = f"the recipe needs the plugin '{value}', which is not installed{hint}"
            problems.append(Problem(message + plugins.blocked_hint, item.where))
    return problems


def _load_file(path: Path, written: str, plugins: Plugins, allowed: bool) -> str:
    """Load a plugin file, unless it is loaded; return why it cannot be, or ""."""
    if os.path.realpath(path) in map(os.path.realpath, plugins.files):
        return ""
    if not path.is_file():
        return f"the recipe needs the plugin file {written}, which is missing"
    if not allowed:
        return (
            f"the recipe needs the plugin file {written}, which is code and runs with your rights; read it, "
            f"then allow it with --allow-plugins, or with --plugin {path}"
        )
    plugins.load_file(path)
    return ""


def _translate_text(
    text: str, plugins: Plugins, path: Path | None
) -> tuple[str, Callable[[int], str]]:
    """Return the recipe as one of ours, and a function from its line numbers to `file:line`."""
    label = str(path) if path else "recipe"
    translated = translate_recipe(text, plugins, path)
    if translated is None:
        return text, lambda line: f"{label}:{line}"
    return translated, lambda line: f"{label} (translated):{line}"


def to_yaml_data(value: Any, value_path: str) -> Any:
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
        return write_path_reference(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {
            str(key): to_yaml_data(inner, f"{value_path}.{key}") for key, inner in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [to_yaml_data(inner, f"{value_path}.{index}") for index, inner in enumerate(value)]
    type_name = type(value).__name__
    message = f"a recipe has mappings, lists, texts, numbers and paths, no {type_name}"
    raise RecipeError(Problem(message, value_path))
