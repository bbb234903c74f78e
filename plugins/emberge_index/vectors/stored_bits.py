"""Check that an index's bits were made of the vectors in another file, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataError
from emberge.wording import count_noun, join_some

from emberge_index.vectors.codes import find_type_and_width
from emberge_index.vectors.open_vectors import open_bits
from emberge_index.vectors.pieces import SHOWN, block_rows

if TYPE_CHECKING:
    from emberge_index.vectors.pieces import RewritePlan

# Share of a row's bits that may differ from the signs of its vector. Vectors decoded from int8 have lost the
# signs of about one number in a hundred; the bits of another vector differ in half.
_ROUNDED = 1 / 8
_CODES = "Product codes are no signs and cannot be used here; leave them out and give their vectors alone"


def require_signs(bits: Path, plan: RewritePlan) -> None:
    """Refuse a file of bits that are not the signs of a plan's vectors, in their order.

    Raises:
        DataError: if the file has no bits, as many rows, or as many bits a row; or if rows differ.
    """
    import numpy as np

    stored, rows = open_bits(bits), plan.rows
    _, width = find_type_and_width("binary", rows.dtype, rows.dimension)
    if stored.dimension != width:
        raise DataError(
            f"{bits}: has {stored.dimension:,} bytes a row, and the signs of the {rows.dimension:,} numbers "
            f"in {plan.path} take {width:,}; name the bits of these vectors. {_CODES}"
        )
    if stored.rows != rows.rows:
        raise DataError(
            f"{bits}: has {stored.rows:,} rows, and {plan.path} {rows.rows:,}; give both in one order"
        )
    size = block_rows(rows.dimension)
    differing: list[int] = []
    pairs = zip(rows.blocks(0, size), stored.blocks(0, size), strict=True)
    for start, (vectors, packed) in zip(range(0, rows.rows, size), pairs, strict=True):
        changes = np.unpackbits(np.packbits(vectors > 0, axis=-1) ^ packed, axis=-1).sum(1)
        differing += (start + np.flatnonzero(changes > _ROUNDED * rows.dimension)).tolist()
    if differing:
        names = join_some([rows.name_of(row) for row in differing[:SHOWN]], SHOWN)
        more = f" and {len(differing) - SHOWN:,} more" if len(differing) > SHOWN else ""
        raise DataError(
            f"{bits}: {count_noun(len(differing), 'row')} are not the signs of those in {plan.path}, counted "
            f"from 0: {names}{more}; give the vectors that the bits were made of, in their order. {_CODES}"
        )
