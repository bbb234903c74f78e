"""npy files: a header and the rows."""

from __future__ import annotations

import io
from pathlib import Path
from tokenize import TokenError

from emberge import DataError
from emberge.files import open_regular
from emberge.wording import printable

from emberge_index.vectors.pieces import FileRows, NewBytes, RewritePlan, require_floats

# Bytes in which a header must end; one of plain numbers has 128.
LONGEST = 1 << 14


def plan_npy(path: Path, dimension: int) -> RewritePlan:
    """Return the pieces of an npy file whose vectors get another dimension.

    Raises:
        DataError: for an array that is no table of floats, row by row.
    """
    from numpy.lib import format as npy

    with open_regular(path) as file:
        opening = io.BytesIO(file.read(LONGEST))
    try:
        version = npy.read_magic(opening)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, columns_first, dtype = read(opening)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, TokenError) as error:
        raise DataError(f"{path}: is no npy file ({printable(error, 200)})") from error
    require_floats(path, dtype)
    if len(shape) != 2 or columns_first or not dtype.isnative:
        raise DataError(
            f"{path}: holds an array {shape}{', column by column' if columns_first else ''}, not rows of "
            "vectors; save it with np.save(FILE, np.ascontiguousarray(vectors))"
        )
    rows = FileRows(path, opening.tell(), shape[0], shape[1], dtype)
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header,
        {
            "descr": npy.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": (shape[0], dimension),
        },
    )
    return RewritePlan(path, (NewBytes(header.getvalue()), rows), rows)
