"""safetensors files: one tensor of vectors, and others that stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from emberge import CheckpointError, DataError
from emberge.tensor_files import TensorSpec, encode_header, read_header

from emberge_index.vectors.pieces import FileRows, KeptBytes, NewBytes, RewritePlan, require_floats
from emberge_index.vectors.space_mark import MARK, read_mark


def plan_safetensors(path: Path, dimension: int, column: str | None, mark: str) -> RewritePlan:
    """Return the pieces of a safetensors file; `mark` is the text that names the new space in its header.

    Raises:
        DataError: for a file without one tensor of vectors, or of which it is not clear.
    """
    import numpy as np

    specs, metadata = _header(path)
    name = _chosen(path, specs, column)
    spec = specs[name]
    if spec.dtype.startswith(("bfloat", "float8", "complex")):
        raise DataError(f"{path}: tensor '{name}' is {spec.dtype}; convert it to F16 or F32 first")
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    require_floats(path, dtype, f"vectors '{name}'")
    rows = FileRows(path, spec.offset, spec.shape[0], spec.shape[1], dtype)
    changed = replace(spec, shape=(rows.rows, dimension))
    ordered = sorted(specs.values(), key=lambda one: (one.offset, one.nbytes))
    opening, _ = encode_header(
        [changed if one is spec else one for one in ordered], {**metadata, MARK: mark}
    )
    pieces = [rows if one is spec else KeptBytes(one.offset, one.nbytes) for one in ordered]
    fingerprint, side = read_mark(metadata.get(MARK))
    return RewritePlan(path, (NewBytes(opening), *pieces), rows, fingerprint, side)


def _header(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    try:
        return read_header(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error


def _chosen(path: Path, specs: Mapping[str, TensorSpec], column: str | None) -> str:
    tables = [name for name, one in specs.items() if len(one.shape) == 2]
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
