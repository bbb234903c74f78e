"""What decides a result, as a hash: content and options, never paths, machines or descriptions."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emberge.contracts.reference import Reference
from emberge.contracts.schedule import PerTensor
from emberge.data.entry import DataEntry
from emberge.errors import PluginError
from emberge.files.hashes import file_fingerprint, stable_hash
from emberge.plugins import Plugins

__all__ = ["plain"]


def plain(value: Any, plugins: Plugins, refer: Callable[[Reference | DataEntry], Any]) -> Any:
    """A component with everything in it as plain JSON values.

    A component stands with its full name and its `revision`; `refer` says what stands for a reference,
    and for the path of an entry of data that takes only some sets of a catalogue.

    Raises:
        PluginError: for an option that has no stable form.
    """

    def walk(item: Any) -> Any:
        if isinstance(item, Reference):
            return refer(item)
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            options = {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}
            if isinstance(item, DataEntry) and item.only and item.path and not item.path.step:
                options["path"] = refer(item)
            options = {name: walk(one) for name, one in options.items()}
            return {**_called(item, plugins), "options": options}
        if isinstance(item, Mapping):
            return {str(key): walk(one) for key, one in item.items()}
        if isinstance(item, list | tuple):
            return [walk(one) for one in item]
        if isinstance(item, set | frozenset):
            return sorted((walk(one) for one in item), key=stable_hash)
        return _atom(item)

    return walk(value)


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
        return file_fingerprint(item) if item.exists() else item.name
    raise PluginError(
        f"an option holds a {type(item).__name__}, of which no stable hash can be made; "
        "options are numbers, text, lists, mappings, references and dataclasses of these"
    )
