"""Hashes of all that decides a result: content and options, never paths, machines or descriptions."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emberge.contracts import PerTensor, Reference
from emberge.data import DataEntry
from emberge.errors import PluginError
from emberge.hashes import HashCache
from emberge.plugins import Plugins
from emberge.recipes.options.component_tree import fields_in, to_plain


def plain(value: Any, plugins: Plugins, refer: Callable[[Reference | DataEntry], Any]) -> Any:
    """Return a component with everything in it as JSON values.

    A component has its full name and its `revision`; `refer` gives the value for a reference, and for the
    path of an entry of data that takes only some sets of a catalogue.

    Raises:
        PluginError: for an option that has no stable form.
    """

    def record(item: Any, inner: Callable[[Any], Any]) -> Any:
        options = {name: inner(one) for name, one in fields_in(item)}
        if isinstance(item, DataEntry) and item.only and item.path and not item.path.step:
            options["path"] = inner(refer(item))
        return {**_called(item, plugins), "options": options}

    def leaf(item: Any) -> Any:
        return refer(item) if isinstance(item, Reference) else _atom(item)

    return to_plain(value, leaf, record, (Reference,))


def _called(item: Any, plugins: Plugins) -> dict[str, Any]:
    try:
        name = plugins.component_of(type(item)).full_name
    except PluginError:
        name = type(item).__name__  # a part of a component's options
    return {"is": name, "revision": getattr(item, "revision", 1)}


def _atom(item: Any) -> Any:
    if isinstance(item, PerTensor):
        return [[e.filter, e.value] for e in item.entries]
    if isinstance(item, enum.Enum):
        return item.value
    if isinstance(item, bool | str | int) or item is None:
        return item
    if isinstance(item, float):
        return int(item) if item.is_integer() else item
    if isinstance(item, range):
        return [item.start, item.stop, item.step]
    if isinstance(item, Path):
        return HashCache().of_tree(item) if item.exists() else item.name
    raise PluginError(
        f"an option holds a {type(item).__name__}, of which no stable hash can be made; "
        "options are numbers, text, lists, mappings, references and dataclasses of these"
    )
