"""Vectors of an index in a file, and their faults beside the model that they should be of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.engine import join_some

from emberge_index.space.compare import SAME, largest_distance

if TYPE_CHECKING:
    from emberge_index.space.passport import Passport

__all__ = ["read_vectors", "require_passport", "require_sample"]

# Distance from length one that rounding to sixteen bits leaves at most.
_UNIT = 1e-2


def read_vectors(path: Path) -> Any:
    """Return the vectors [n, d] of an .npy file, or of a .safetensors file with one tensor.

    Raises:
        DataError: for another file, codes instead of numbers, and rows with NaN or infinite values.
    """
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = list(load_file(path).values()) if path.suffix == ".safetensors" else [np.load(path)]
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{path}: no vectors can be read from it ({error}); give .npy or .safetensors"
        ) from error
    if len(found) != 1 or found[0].ndim != 2:
        raise DataError(
            f"{path}: has no single table of vectors; give one with a row for each text"
        )
    rows = found[0]
    if rows.dtype.kind != "f":
        raise DataError(
            f"{path}: has {rows.dtype} codes, which vectors cannot be had back of; give the float vectors "
            "that they were made of, or embed the texts again"
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(bad):
        raise DataError(
            f"{path}: {len(bad)} rows have NaN or infinite values (rows {join_some(list(map(str, bad)), 5)}, "
            "counted from 0); embed their texts again"
        )
    return np.asarray(rows, np.float32)


def require_passport(path: Path, rows: Any, passport: Passport, name: str) -> None:
    """Make sure that vectors have the size and the length that the passport names.

    Raises:
        DataError: when they have not.
    """
    import numpy as np

    if passport.dimension is not None and rows.shape[1] != passport.dimension:
        raise DataError(
            f"{path}: vectors of {rows.shape[1]} numbers are not those of {name}, which has "
            f"{passport.dimension}; name the model that they were made by"
        )
    unit = bool((np.abs(np.linalg.norm(rows, axis=1) - 1) < _UNIT).all())
    if passport.normalised and not unit:
        raise DataError(
            f"{path}: its vectors are not of length one, and {name} normalises; bring them to length one, or "
            "name the model that they were made by"
        )
    if unit and not passport.normalised and passport.similarity != "cosine":
        raise DataError(
            f"{path}: its vectors are of length one, and {name} does not normalise and compares by "
            f"{passport.similarity}; embed the texts again without normalising"
        )


def require_sample(path: Path, sample: Any, documents: Any, queries: Any | None, name: str) -> None:
    """Make sure that a sample of stored vectors is what a model makes of their texts as documents.

    Raises:
        DataError: for vectors of queries, or of another model.
    """
    unit = [_unit(rows) for rows in (sample, documents)]
    distance = largest_distance(*unit)
    if distance is None or distance <= SAME:
        return
    if queries is not None and (largest_distance(unit[0], _unit(queries)) or 0.0) <= SAME:
        raise DataError(
            f"{path}: its vectors are those of queries of {name}, not of documents: the prompts were "
            "mixed up; embed the texts again with the prompt for documents"
        )
    raise DataError(
        f"{path}: its vectors are not those of {name}: of a sample of {len(sample)} texts one is "
        f"{distance:.0%} of its length away; name the model that they were made by, or give the texts in "
        "their order"
    )


def _unit(rows: Any) -> Any:
    import numpy as np

    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
