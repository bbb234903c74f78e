"""safetensors files: one tensor of vectors, and others that stay."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from emberge import DataError

from emberge_index.vectors.pieces import FileRows, Kept, New, Piece, Plan, require_floats
from emberge_index.vectors.space_mark import MARK, read_mark

__all__ = ["plan_safetensors"]

_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "<i1", "U8": "<u1"}


def plan_safetensors(path: Path, dimension: int, column: str | None, mark: str) -> Plan:
    """Return the pieces of a safetensors file; `mark` is the text that names the new space in its header.

    Raises:
        DataError: for a file without one tensor of vectors, or of which it is not clear.
    """
    import numpy as np

    entries, metadata, start = _header(path)
    name = _chosen(path, entries, column)
    entry = entries[name]
    if entry["dtype"] not in _DTYPES:
        raise DataError(
            f"{path}: tensor '{name}' is {entry['dtype']}; convert it to F16 or F32 first"
        )
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    require_floats(path, dtype, f"vectors '{name}'")
    count, width = entry["shape"]
    rows = FileRows(path, start + entry["data_offsets"][0], count, width, dtype)
    pieces: list[Piece] = []
    changed: dict[str, Any] = {"__metadata__": {**metadata, MARK: mark}}
    place = 0
    for other in sorted(entries, key=lambda one: entries[one]["data_offsets"]):
        one = entries[other]
        first, last = one["data_offsets"]
        size, shape = last - first, one["shape"]
        if other == name:
            size, shape = count * dimension * dtype.itemsize, [count, dimension]
        changed[other] = {**one, "shape": shape, "data_offsets": [place, place + size]}
        pieces.append(rows if other == name else Kept(start + first, size))
        place += size
    text = json.dumps(changed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    opening = New(len(text).to_bytes(8, "little") + text)
    fingerprint, side = read_mark(metadata.get(MARK))
    return Plan(path, (opening, *pieces), rows, fingerprint, side)


def _header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            if size > os.path.getsize(path):
                raise ValueError("its header is longer than the file")
            entries = json.loads(file.read(size))
            metadata = entries.pop("__metadata__", {})
        except (ValueError, AttributeError) as error:
            raise DataError(f"{path}: is no safetensors file ({error})") from error
    return entries, metadata, 8 + size


def _chosen(path: Path, entries: dict[str, Any], column: str | None) -> str:
    tables = [name for name, one in entries.items() if len(one["shape"]) == 2]
    if column is not None:
        if column not in tables:
            raise DataError(
                f"{path}: has no vectors '{column}'; its tables are {', '.join(tables) or 'none'}"
            )
        return column
    if len(tables) != 1:
        listed = ", ".join(tables) or "none"
        raise DataError(f"{path}: has {len(tables)} tables ({listed}); name one with --column")
    return tables[0]
