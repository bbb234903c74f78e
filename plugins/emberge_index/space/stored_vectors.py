"""Vectors of an index in a file, and their faults beside the model that they should be of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.numerics import unit_rows

from emberge_index.space.compare import SAME, largest_distance

if TYPE_CHECKING:
    from emberge_index.space.passport import Passport


# Distance from length one that rounding to sixteen bits leaves at most.
_UNIT = 1e-2


def require_passport(path: Path, rows: Any, passport: Passport, name: str) -> None:
    """Make sure that vectors have the size and the length that the passport names, but for those of zeros.

    Raises:
        DataError: when they have not.
    """
    import numpy as np

    if passport.dimension is not None and rows.shape[1] != passport.dimension:
        raise DataError(
            f"{path}: vectors of {rows.shape[1]} numbers are not those of {name}, which has "
            f"{passport.dimension}; name the model that they were made by"
        )
    lengths = np.linalg.norm(rows, axis=1)
    unit = bool((np.abs(lengths[lengths > 0] - 1) < _UNIT).all())
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
    unit = [unit_rows(rows) for rows in (sample, documents)]
    distance = largest_distance(*unit)
    if distance is None or distance <= SAME:
        return
    if queries is not None and (largest_distance(unit[0], unit_rows(queries)) or 0.0) <= SAME:
        raise DataError(
            f"{path}: its vectors are those of queries of {name}, not of documents: the prompts were "
            "mixed up; embed the texts again with the prompt for documents"
        )
    raise DataError(
        f"{path}: its vectors are not those of {name}: of a sample of {len(sample)} texts one is "
        f"{distance:.0%} of its length away; name the model that they were made by, or give the texts in "
        "their order"
    )
