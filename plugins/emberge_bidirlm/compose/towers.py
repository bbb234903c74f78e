"""Proof that towers and projectors are the specialists' own, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, TensorSpec

from emberge_bidirlm.compose.specialist import Specialist
from emberge_bidirlm.compose.target import ComposedClass

_PIECE = 1 << 24


def prove_tower(one: Specialist, target: ComposedClass, result: Path) -> dict[str, Any]:
    """Return size and hash of a specialist's tower, which is the same in a finished result.

    Raises:
        CheckpointError: when a tensor is another there.
    """
    own = Checkpoint(result).specs
    copies = {name: own[target.name(name)] for name in one.tower}
    before, after = tower_hash(one.tower), tower_hash(copies)
    if before != after:
        raise CheckpointError(
            f"{result}: its {one.kind} tower is not that of {one.checkpoint.folder}; remove the result and "
            "run again"
        )
    return {
        "tensors": len(one.tower),
        "parameters": sum(spec.elements for spec in one.tower.values()),
        "sha256": before,
    }


def tower_hash(tensors: Mapping[str, TensorSpec]) -> str:
    """Return the SHA-256 of tensors in the order of their names: name, shape, dtype and bytes of each."""
    found = hashlib.sha256()
    with TensorReader() as reader:
        for name in sorted(tensors):
            spec = tensors[name]
            found.update(f"{name} {list(spec.shape)} {spec.dtype}\n".encode())
            size = spec.elements * spec.itemsize
            for start in range(0, size, _PIECE):
                piece = bytearray(min(_PIECE, size - start))
                reader.read_bytes(spec, start, memoryview(piece))
                found.update(piece)
    return found.hexdigest()
