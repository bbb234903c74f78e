"""The fingerprint of a step, and its inputs with the hashes of their contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from emberge.component_parts import convert_parts, walk_fields, walk_parts
from emberge.contracts import DataRef, FileRef, ModelRef, PerTensor, Reference
from emberge.data import DataEntry
from emberge.errors import EmbergeError, PluginError, RecipeError
from emberge.hashes import HashCache, hash_value
from emberge.model_folder import hash_model
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.references import locate_file
from emberge.recipes.targets import Targets
from emberge.results import Input


def compute_fingerprint(step: RecipeStep, seed: int, targets: Targets) -> str:
    """Return the hash of what decides a step's result: its options, its inputs' contents, and the seed.

    The steps that it needs must be finished.

    Raises:
        PluginError: if an option has no stable form.
        EmbergeError: if an input is missing.
    """
    content = {
        "kind": step.kind,
        "step": describe_content(step.step, targets),
        "identity": step.step.identity(),
        "seed": seed,
    }
    return hash_value(content)


def describe_content(value: Any, targets: Targets) -> Any:
    """Return a component and all its parts as JSON values, with hashes in place of inputs.

    Each component includes its full name, its `revision` and, if it is of a bare file, its content.
    References and data entries have the hashes of their contents.
    """

    def describe_record(item: Any, inner: Callable[[Any], Any]) -> dict[str, Any]:
        described = {"is": type(item).__name__, "revision": getattr(item, "revision", 1)}
        with suppress(PluginError):  # a part of a component's options was added by no plugin
            component = targets.plugins.find_component(type(item))
            described["is"] = component.full_name
            if component.source.content:
                described["content"] = component.source.content
        options = {name: inner(option) for name, option in walk_fields(item)}
        if isinstance(item, DataEntry) and item.path is not None:
            options["path"] = _describe_reference(item.path, targets, item.only)
        return {**described, "options": options}

    def describe_leaf(item: Any) -> Any:
        if isinstance(item, Reference):
            return _describe_reference(item, targets)
        return _convert_value(item)

    return convert_parts(value, describe_leaf, describe_record, (Reference,))


def _describe_reference(
    reference: Reference, targets: Targets, only: Sequence[str] = ()
) -> dict[str, Any]:
    if reference.step is not None:
        fingerprint = targets.step(reference).fingerprint
        described = {"step": reference.step, "part": reference.part, "made": fingerprint}
        adapter = targets.locate_adapter(reference)
        if adapter is not None:
            described["adapter"] = hash_model(adapter, targets.hashes)
        return described
    if isinstance(reference, ModelRef):
        return {"model": targets.model(reference).fingerprint}
    if isinstance(reference, DataRef | FileRef):
        return {"content": _hash_data(locate_file(reference), only, targets.hashes)}
    raise RecipeError(f"'{reference}' names no step of the recipe")


def _convert_value(value: Any) -> Any:
    """Return the value of an option as JSON has it."""
    if isinstance(value, bool | str | int) or value is None:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, PerTensor):
        return [[entry.filter, entry.value] for entry in value.entries]
    if isinstance(value, Path):
        return HashCache().of_tree(value) if value.exists() else value.name
    raise PluginError(
        f"an option has a {type(value).__name__}, which has no stable hash; "
        "options are numbers, text, lists, mappings, references and dataclasses of these"
    )


def list_inputs(component: Any, targets: Targets) -> list[Input]:
    """Return a step's inputs, each with the hash of its content, as `artifact.json` keeps them."""
    inputs: dict[Input, None] = {}
    for _, part in walk_parts(component, DataEntry, Reference):
        if isinstance(part, ModelRef):
            models = targets.models(part)
            inputs |= {Input(part.text, m.name, m.fingerprint): None for m in models}
        elif isinstance(part, DataEntry | Reference):
            inputs |= dict.fromkeys(_list_data_inputs(part, targets))
    return list(inputs)


def _list_data_inputs(part: Reference | DataEntry, targets: Targets) -> Iterator[Input]:
    entry = part if isinstance(part, DataEntry) else DataEntry()
    reference = part.path if isinstance(part, DataEntry) else part
    text = reference.text if reference is not None else str(entry.hub)
    name = entry.name or text.rpartition("/")[2].removeprefix("$")
    if reference is None:  # it is identified by its name and revision
        yield Input(text, name, hash_value([text, entry.subset, entry.revision]), "hub data")
    elif reference.step is not None:
        yield Input(text, name, targets.step(reference).fingerprint, "step")
    elif isinstance(reference, DataRef | FileRef):
        content = _hash_data(locate_file(reference), entry.only, targets.hashes)
        yield Input(text, name, content, "data", entry.only)


def _hash_data(path: Path, only: Sequence[str], hashes: HashCache) -> str:
    """Return a hash of a file or folder and, for a catalogue, of the files that it names."""
    parts = [hashes.of_tree(path)]
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        parts += [hashes.of_tree(p) for p in _list_catalogued_files(path, only)]
    return hash_value(parts)


def _list_catalogued_files(path: Path, only: Sequence[str]) -> list[Path]:
    """Return the files and folders that a catalogue names (of the training sets in `only`, if given)."""
    from emberge.data import load_catalogue

    catalogue = load_catalogue(path)
    listed = (*catalogue.train, *catalogue.dev, *catalogue.test)
    entries = [e for e in listed if e.path is not None and (not only or e.name in only)]
    paths = [locate_file(e.path) for e in entries if e.path is not None]
    paths += [Path(e.documents) for e in entries if e.documents is not None]
    if not only:
        paths += [s.folder for s in catalogue.eval]
    missing = [p for p in paths if not p.exists()]
    if missing:
        raise EmbergeError(f"{path}: {missing[0]} is missing")
    return paths
