"""The form of new vectors: floats, bits, or int8 codes with ranges of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataError

from emberge_index.vectors.codes import Codec
from emberge_index.vectors.mapper import Mapper
from emberge_index.vectors.pieces import block_rows

if TYPE_CHECKING:
    from emberge.encoding import Int8Ranges

    from emberge_index.translation import Translation
    from emberge_index.vectors.pieces import RewritePlan, VectorSource


# Vectors from which the ranges of new codes are taken, and the places in the file that they come from.
SAMPLE, PLACES = 10_000, 16


def build_codec(
    plan: RewritePlan, translation: Translation, new_ranges: Path | None = None
) -> Codec | None:
    """Return the form of the new vectors; None for floats.

    New int8 codes have the ranges of the file `new_ranges`, or those of a sample of mapped vectors.

    Raises:
        DataError: if the file has no ranges, or the sample gives none.
    """
    if plan.kind != "int8":
        return None if plan.kind is None else Codec(plan.kind)
    from emberge.encoding import Int8Ranges  # it loads torch, which floats and bits need not

    mapper = Mapper(translation, plan.rows.dtype)
    if new_ranges is not None:
        return Codec("int8", Int8Ranges.read(new_ranges, mapper.dimension))
    return Codec("int8", _measure_ranges(plan.rows, mapper))


def _measure_ranges(rows: VectorSource, mapper: Mapper) -> Int8Ranges:
    """Return the ranges of mapped vectors, from at most 10,000 rows of evenly spaced parts of a file.

    Raises:
        DataError: if there are fewer than two vectors, or mapped ones are not finite.
    """
    import numpy as np
    from emberge.encoding import Int8Ranges

    size = min(block_rows(rows.dimension, mapper.dimension), max(1, SAMPLE // PLACES))
    count = -(-rows.rows // size)
    places = sorted({int(place) * size for place in np.linspace(0, max(0, count - 1), PLACES)})
    blocks = [next(iter(rows.blocks(place, size)), None) for place in places]
    mapped = [mapper(block).vectors for block in blocks if block is not None]
    try:
        return Int8Ranges.of(np.concatenate(mapped) if mapped else np.zeros((0, mapper.dimension)))
    except ValueError as error:
        raise DataError(f"ranges for int8: {error}; give some by --new-ranges") from error
