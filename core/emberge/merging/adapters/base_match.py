"""Matching of an adapter with its base: by content where the adapter records it, else by name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from emberge.errors import CheckpointError
from emberge.merging.adapters.adapter_config import AdapterConfig
from emberge.model_folder import Checkpoint
from emberge.tensor_files import HEADER, TensorSpec, read_provenance
from emberge.tensor_names import Names, is_buffer

KEY = "adapter_of"
# Tensors up to this size are hashed whole, of larger ones so many pages spread evenly over them: any
# training moves all of a tensor, and a look at a base takes no longer than reading its header.
_SMALL = 64 << 10
_PAGES, _PAGE = 16, 4 << 10
_SNAPSHOT = re.compile(r"models--(.+?)--(.+)$")


def origin_hash(names: Names, checkpoint: Checkpoint) -> str:
    """Hash a base's trunk: each tensor's canonical name, shape and dtype, and a sample of its bytes.

    Prefixes, shards, tokenizer, heads and modules after the trunk do not count.
    """
    modules = tuple(part for part in checkpoint.parts if part)
    hasher = xxhash.xxh3_128()
    with ExitStack() as stack:
        files: dict[Path, BinaryIO] = {}
        for name, spec in sorted(names.specs.items()):
            if name in names.heads or is_buffer(name) or (modules and name.startswith(modules)):
                continue
            if spec.file not in files:
                files[spec.file] = stack.enter_context(spec.file.open("rb", buffering=0))
            hasher.update(repr((name, spec.shape, spec.dtype)).encode())
            size = getattr(spec, "stored", spec).nbytes
            for start, length in _sampled_places(size):
                hasher.update(os.pread(files[spec.file].fileno(), length, spec.offset + start))
    return str(hasher.hexdigest())


def _sampled_places(size: int) -> Iterator[tuple[int, int]]:
    if size <= _SMALL:
        yield 0, size
        return
    for page in range(_PAGES):
        yield (size - _PAGE) * page // (_PAGES - 1), _PAGE


def adapter_origin(base: Path) -> tuple[str, dict[str, str]]:
    """Return (the usual name of a base, the header's metadata of an adapter that is made on it).

    By such metadata a merge refuses another base with the same name.

    Raises:
        CheckpointError: for a folder without a checkpoint.
    """
    checkpoint = Checkpoint(base)
    name = name_of_base(base)
    made = made_on(checkpoint.names, checkpoint, name)
    return name, {HEADER: json.dumps(made)}


def made_on(names: Names, checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return an adapter's provenance: name and hash of its base."""
    return {KEY: {"name": name, "hash": origin_hash(names, checkpoint)}}


def require_base(
    config: AdapterConfig, metadata: Mapping[str, str], names: Names, checkpoint: Checkpoint
) -> None:
    """Refuse an adapter that was made on another base.

    Raises:
        CheckpointError: naming both.
    """
    folder = config.path.parent
    record = (read_provenance(metadata) or {}).get(KEY)
    if isinstance(record, Mapping) and record.get("hash"):
        if record["hash"] != origin_hash(names, checkpoint):
            raise CheckpointError(
                f"{folder}: is an adapter of '{record.get('name')}', whose weights differ from those of "
                f"{checkpoint.folder}; name the base that it was made on"
            )
        return
    mine, theirs = name_of_base(checkpoint.folder), config.base
    if theirs and _is_hub_id(mine) and _is_hub_id(theirs) and mine.lower() != theirs.lower():
        raise CheckpointError(
            f"{folder}: is an adapter of '{theirs}', and '{mine}' is another model; name {theirs}, or "
            "correct base_model_name_or_path in adapter_config.json if the two are one"
        )


def name_of_base(folder: Path) -> str:
    """Return the usual name of a model: the hub's for one in the hub's cache, else its folder's."""
    found = _SNAPSHOT.match(folder.resolve().parent.parent.name)
    if found and folder.resolve().parent.name == "snapshots":
        return f"{found[1]}/{found[2]}"
    return folder.name


def base_warning(config: AdapterConfig, metadata: Mapping[str, str], base: Path) -> str | None:
    """Return a warning where an adapter's base is known by a name alone that the folder lacks; else None."""
    record = (read_provenance(metadata) or {}).get(KEY)
    theirs = (config.base or "").rstrip("/").rpartition("/")[2]
    if record or not theirs or theirs == name_of_base(base).rpartition("/")[2]:
        return None
    return (
        f"{config.path.parent.name} says that it was made on '{config.base}'; whether '{base.name}' is the "
        "same model cannot be known by its name"
    )


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not name.startswith(".")


def same_bytes(first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether two tensors in files are equal byte for byte."""
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    with first.file.open("rb") as a, second.file.open("rb") as b:
        for start in range(0, first.nbytes, 1 << 20):
            length = min(1 << 20, first.nbytes - start)
            pieces = [
                os.pread(file.fileno(), length, spec.offset + start)
                for file, spec in ((a, first), (b, second))
            ]
            if pieces[0] != pieces[1]:
                return False
    return True
