"""Hashes of all that decides a result: content and options, never paths, machines or descriptions."""

from __future__ import annotations

import enum
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from emberge.contracts.schedule import PerTensor
from emberge.contracts.step import Reference
from emberge.data.entry import DataEntry
from emberge.errors import CheckpointError, EmbergeError, PluginError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.plugins import Plugins
from emberge.recipes.folder.run_folder import write_json
from emberge.recipes.options.component_tree import fields_in, to_plain
from emberge.tensor_files.content_hash import file_pieces

__all__ = [
    "HashCache",
    "file_fingerprint",
    "folder_fingerprint",
    "model_files",
    "model_fingerprint",
    "plain",
    "stable_hash",
]

# Beside a model's files, and no part of what it computes.
_BESIDE = {"artifact.json", "trainer_state.json", "metrics.jsonl", "README.md"}
_MODEL_FILES = (
    *(".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken", ".vocab", ".bpe"),
    *(".spm", ".codes", ".metadata", ".py"),
)
_PICKLES = (".bin", ".pt", ".pth")
# A file changed so lately could change again within one tick of its clock.
_SETTLED = 100_000_000  # nanoseconds


class HashCache:
    """The hashes of files by path, size and times, so that each file is read only once.

    Paths below `root` are kept relative to it, others as a hash: the file has no path in it.
    """

    def __init__(self, path: Path | None = None, root: Path | None = None) -> None:
        self.path = path
        self.root = root.resolve() if root else None
        self._known: dict[str, Any] = {}
        self._changed = False
        if path is not None and path.is_file():
            self._known = _read_cache(path)
            self._changed = not self._known  # damaged: written anew

    def of(self, file: Path) -> str:
        """Return the XXH3 hash of a file's bytes, 128 bits in hex."""
        status = file.stat()
        known = self._known.get(self._key(file))
        if known and known[:3] == _stamp(status):
            return str(known[3])
        digest = _digest(file)
        self._keep(file, status, digest)
        return digest

    def learn(self, hashes: Mapping[Path, str]) -> None:
        """Keep hashes that were taken of files as they are now."""
        for file, digest in hashes.items():
            self._keep(file, file.stat(), digest)

    def _keep(self, file: Path, status: os.stat_result, digest: str) -> None:
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED:
            self._known[self._key(file)] = [*_stamp(status), digest]
            self._changed = True

    def save(self) -> None:
        """Write what was learned; a folder that cannot be written costs only time."""
        if self.path is None or not self._changed:
            return
        try:
            with self.path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the run save theirs too
                self._known = {**_read_cache(self.path), **self._known}
                write_json(self.path, self._known)
        except OSError:
            return
        self._changed = False

    def _key(self, file: Path) -> str:
        absolute = file.resolve()
        if self.root is not None and absolute.is_relative_to(self.root):
            return absolute.relative_to(self.root).as_posix()
        return hashlib.sha256(os.fsencode(absolute)).hexdigest()


def _read_cache(path: Path) -> dict[str, Any]:
    """Read the cache file; return nothing when it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(file: Path) -> str:
    # XXH3 because hashing must not cost more than merging does: SHA-256 reads a sixteenth as fast. It
    # distinguishes contents; it does not defend against forged ones.
    hasher = xxhash.xxh3_128()
    for piece in file_pieces(file):
        hasher.update(piece)
    return str(hasher.hexdigest())


def model_fingerprint(
    folder: Path, cache: HashCache | None = None, adapter: Path | None = None
) -> str:
    """Hash everything in a model folder that decides its embeddings.

    Weights, configs, tokenizer and module folders count; README.md, artifact.json, metrics.jsonl, saved
    checkpoints and copies in other formats do not.

    Raises:
        CheckpointError: when there is no file of a model.
    """
    names = {file.relative_to(folder).as_posix(): file for file in model_files(folder)}
    if not names:
        raise CheckpointError(f"{folder}: there is no model: neither configs nor weights")
    parts = _hash_files(names, cache)
    if adapter is None:
        return parts
    return stable_hash([parts, model_fingerprint(adapter, cache)])


def folder_fingerprint(folder: Path, cache: HashCache | None = None) -> str:
    """Hash all files below a folder, by their names in it; hidden ones do not count."""
    inside = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file()}
    shown = {n.as_posix(): p for n, p in inside.items() if not _hidden(n)}
    return _hash_files(shown, cache)


def file_fingerprint(path: Path, cache: HashCache | None = None) -> str:
    """Hash a file's bytes, or all files below a folder."""
    if path.is_dir():
        return folder_fingerprint(path, cache)
    return (cache or HashCache()).of(path)


def stable_hash(value: object) -> str:
    """Return the SHA-256 of plain values, the same in every process."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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


def _hash_files(files: Mapping[str, Path], cache: HashCache | None) -> str:
    cache = cache or HashCache()
    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return stable_hash(dict(zip(files, pool.map(cache.of, files.values()), strict=True)))
    except OSError as error:
        raise EmbergeError(f"{error.filename}: cannot be read: {error.strerror}") from error


def model_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model folder that decide its embeddings."""
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
        return []  # its check reports what is wrong
    return [folder / name for name in names if (folder / name).is_dir()]


def _hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts)
