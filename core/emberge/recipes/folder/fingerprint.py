"""What decides a result, as a hash: content and options, never paths, machines or descriptions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from emberge.contracts.reference import Reference
from emberge.contracts.schedule import PerTensor
from emberge.data.entry import DataEntry
from emberge.errors import CheckpointError, PluginError
from emberge.files.hashes import HashCache, file_fingerprint, files_fingerprint, stable_hash
from emberge.model_folder.checkpoint import Checkpoint
from emberge.plugins import Plugins
from emberge.recipes.options.component_tree import fields_in, to_plain

__all__ = [
    "model_files",
    "model_fingerprint",
    "plain",
]

# Beside a model's files, and no part of what it computes.
_BESIDE = {"artifact.json", "trainer_state.json", "metrics.jsonl", "README.md"}
_MODEL_FILES = (
    *(".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken", ".vocab", ".bpe"),
    *(".spm", ".codes", ".metadata", ".py"),
)
_PICKLES = (".bin", ".pt", ".pth")


def model_fingerprint(
    folder: Path, cache: HashCache | None = None, adapter: Path | None = None
) -> str:
    """A hash of everything in a model folder that decides its embeddings.

    Weights, configs, tokenizer and module folders count; README.md, artifact.json, metrics.jsonl, saved
    checkpoints and copies in other formats do not.

    Raises:
        CheckpointError: when there is no file of a model.
    """
    names = {file.relative_to(folder).as_posix(): file for file in model_files(folder)}
    if not names:
        raise CheckpointError(f"{folder}: holds no model: neither configs nor weights")
    parts = files_fingerprint(names, cache)
    if adapter is None:
        return parts
    return stable_hash([parts, model_fingerprint(adapter, cache)])


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
        return file_fingerprint(item) if item.exists() else item.name
    raise PluginError(
        f"an option holds a {type(item).__name__}, of which no stable hash can be made; "
        "options are numbers, text, lists, mappings, references and dataclasses of these"
    )


def model_files(folder: Path) -> Iterator[Path]:
    """The files of a model folder that decide its embeddings."""
    yield from _files_of(folder.iterdir() if folder.is_dir() else ())
    for module in _module_folders(folder):
        yield from _files_of(module.rglob("*"))


def _files_of(paths: Iterable[Path]) -> list[Path]:
    files = [p for p in sorted(paths) if p.is_file() and p.name not in _BESIDE]
    wanted = [p for p in files if p.suffix in _MODEL_FILES and not p.name.startswith(".")]
    if any(p.suffix == ".safetensors" for p in wanted):
        return wanted
    return wanted + [p for p in files if p.suffix in _PICKLES]


def _module_folders(folder: Path) -> list[Path]:
    try:
        names = sorted({module.path for module in Checkpoint(folder).chain} - {"", "."})
    except CheckpointError:
        return []  # its check says what is wrong
    return [folder / name for name in names if (folder / name).is_dir()]
