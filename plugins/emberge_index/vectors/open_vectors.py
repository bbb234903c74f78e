"""The one door for files of vectors from outside: their format, header, size and numbers are checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataError, RecipeError

from emberge_index.vectors.faiss_file import plan_faiss
from emberge_index.vectors.npy_file import plan_npy
from emberge_index.vectors.parquet_file import plan_parquet
from emberge_index.vectors.pieces import RewritePlan, block_rows, require_finite
from emberge_index.vectors.safetensors_vectors import plan_safetensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FORMATS = ".npy, .safetensors, .parquet, .faiss or .index"


@dataclass(frozen=True, eq=False)
class VectorsOfFile:
    """All vectors of a file, finite float32 [n, d], and the model and side that the file names."""

    plan: RewritePlan
    rows: NDArray[np.float32]


def plan_vectors(
    path: Path, column: str | None = None, *, dimension: int, mark: str = ""
) -> RewritePlan:
    """Return the pieces of a file of vectors, which get another dimension, by the ending of its name.

    `mark` is the text that names their space in the header of a safetensors file.

    Raises:
        DataError: for a file that is missing or damaged, or whose vectors cannot be rewritten.
        RecipeError: for an ending that is not known, and a column of a file that has none.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file of vectors")
    if path.suffix == ".safetensors":
        return plan_safetensors(path, dimension, column, mark)
    if path.suffix == ".parquet":
        return plan_parquet(path, column)
    if path.suffix not in (".npy", ".faiss", ".index"):
        raise RecipeError(f"{path}: is in no format that is read here; name a file in {FORMATS}")
    if column is not None:
        raise RecipeError(f"{path}: a {path.suffix} file has no columns; leave out --column")
    return plan_npy(path, dimension) if path.suffix == ".npy" else plan_faiss(path, dimension)


def read_vectors(path: Path, column: str | None = None) -> VectorsOfFile:
    """Return all vectors of a file in memory.

    Raises:
        DataError: as `plan_vectors`, for rows that are not finite, and for more than the memory has.
        RecipeError: as `plan_vectors`.
    """
    import numpy as np

    plan = plan_vectors(path, column, dimension=1)
    rows = plan.rows
    size = block_rows(max(1, rows.dimension))
    try:
        found = np.empty((rows.rows, rows.dimension), np.float32)
    except MemoryError as error:
        raise DataError(
            f"{path}: {rows.rows:,} vectors of {rows.dimension:,} numbers do not fit the memory; give fewer"
        ) from error
    require_finite(path, rows, size)
    first = 0
    for block in rows.blocks(0, size):
        found[first : first + len(block)] = block
        first += len(block)
    return VectorsOfFile(plan, found)
