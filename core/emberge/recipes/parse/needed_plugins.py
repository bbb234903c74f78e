"""The plugins that a recipe needs: `plugins: [mine.py, acme]`, files to load or names to find installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from emberge.errors import Problem, suggest
from emberge.plugins import Plugins
from emberge.yaml_nodes import Items, Node, Scalar, describe_node


def load_needed_plugins(
    node: Node, plugins: Plugins, folder: Path, *, allowed: bool
) -> Iterator[Problem]:
    """Load the plugin files that a recipe names; yield a problem for each plugin that is missing.

    A file is code, which a recipe from somewhere else must not run unasked. It is loaded if the user has
    `allowed` it; a file that was loaded already needs no permission.

    Raises:
        PluginError: if a file cannot be imported, or breaks a contract.
    """
    for item in node.items if isinstance(node, Items) else (node,):
        value = item.value if isinstance(item, Scalar) else None
        if not isinstance(value, str) or not value:
            message = f"plugins are files or names of installed plugins, not {describe_node(item)}"
            yield Problem(message, item.where)
        elif value.endswith(".py") or "/" in value:
            file = folder / Path(value).expanduser()
            message = _load_file(file, value, plugins, allowed)
            yield from [Problem(message, item.where)] if message else []
        elif not plugins.manager.has_plugin(value):
            installed = [name for name, _ in plugins.manager.list_name_plugin()]
            hint = suggest(value, installed) or "; install it, or name a file such as ./mine.py"
            message = f"the recipe needs the plugin '{value}', which is not installed{hint}"
            yield Problem(message + plugins.blocked_hint, item.where)


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
