"""Reading of files of vectors from outside, with checks of format, header, size and numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, NamedTuple

from emberge import CheckpointError, DataError, RecipeError
from emberge.files import open_regular
from emberge.tensor_files import TensorSpec, encode_header, read_header
from emberge.wording import printable

from emberge_index.vectors.codes import CodedRows, CodeKind, find_type_and_width
from emberge_index.vectors.faiss_file import plan_faiss
from emberge_index.vectors.mark_file import add_mark
from emberge_index.vectors.parquet_file import plan_parquet
from emberge_index.vectors.pieces import (
    MARK,
    FileRows,
    KeptBytes,
    NewBytes,
    RewritePlan,
    VectorSource,
    block_rows,
    read_mark,
    require_finite,
    require_floats,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_SUFFIXES = (".npy", ".safetensors", ".parquet", ".faiss", ".index")
FORMATS = ".npy, .safetensors, .parquet, .faiss or .index"


@dataclass(frozen=True, eq=False)
class VectorsOfFile:
    """All vectors of a file, finite float32 [n, d], with the model and side that the file names."""

    plan: RewritePlan
    rows: NDArray[np.float32]


def plan_vectors(
    path: Path,
    column: str | None = None,
    *,
    dimension: int,
    mark: str = "",
    ranges: Path | None = None,
    kind: CodeKind | None = None,
) -> RewritePlan:
    """Return the plan to rewrite a file with vectors of another dimension; the suffix decides its format.

    `mark` is the text that names the new space in the header of a safetensors file. `ranges` is the file with
    the ranges of int8 codes, which are rewritten as int8. Vectors of an npy file are written in the form
    `kind`, if one is given.

    Raises:
        DataError: if the file is missing or damaged, or its vectors cannot be rewritten.
        RecipeError: if the suffix is unknown, or a column is given for a file without columns.
    """
    require_format(path)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file of vectors")
    if path.suffix not in (".npy", ".safetensors") and ranges is not None:
        raise RecipeError(
            f"{path}: int8 codes are read from .npy and .safetensors; take --ranges out"
        )
    if path.suffix != ".npy" and kind is not None:
        raise RecipeError(
            f"{path}: only the vectors of an .npy file change their form; take --as out"
        )
    if path.suffix == ".safetensors":
        return plan_safetensors(path, dimension, column, mark, ranges)
    if path.suffix == ".parquet":
        return plan_parquet(path, column, mark)
    if column is not None:
        raise RecipeError(f"{path}: a {path.suffix} file has no columns; leave out --column")
    if path.suffix == ".npy":
        return add_mark(plan_npy(path, dimension, ranges, kind))
    return add_mark(plan_faiss(path, dimension))


def require_format(path: Path) -> None:
    """Refuse a file that is in no format of vectors, by its suffix.

    Raises:
        RecipeError: if it is; the message names the formats.
    """
    if path.suffix not in _SUFFIXES:
        raise RecipeError(f"{path}: is no file of vectors that is read here; name one in {FORMATS}")


def read_vectors(path: Path, column: str | None = None) -> VectorsOfFile:
    """Return all vectors of a file in memory.

    Raises:
        DataError: as `plan_vectors`; also if rows are not finite, or if the vectors do not fit into memory.
        RecipeError: as `plan_vectors`.
    """
    import numpy as np

    plan = plan_vectors(path, column, dimension=1)
    rows = plan.rows
    size = block_rows(max(1, rows.dimension))
    try:
        vectors = np.empty((rows.rows, rows.dimension), np.float32)
    except MemoryError as error:
        raise DataError(
            f"{path}: {rows.rows:,} vectors of {rows.dimension:,} numbers do not fit the memory; give fewer"
        ) from error
    require_finite(path, rows, size)
    start = 0
    for block in rows.blocks(0, size):
        vectors[start : start + len(block)] = block
        start += len(block)
    return VectorsOfFile(plan, vectors)


# Bytes in which a header must end; one of plain numbers has 128.
LONGEST = 1 << 14


def plan_npy(
    path: Path, dimension: int, ranges: Path | None = None, kind: CodeKind | None = None
) -> RewritePlan:
    """Return the plan to rewrite an npy file with vectors of another dimension, perhaps in another form.

    Raises:
        DataError: if the array is not a table of floats stored row by row.
    """
    from numpy.lib import format as npy

    table = _read_npy_header(path)
    is_coded = _is_coded(path, table.dtype, ranges)
    rows: VectorSource = table.locate_rows(path)
    if is_coded:
        rows, kind = _decode_rows(rows, ranges), kind or "int8"
    written, width = find_type_and_width(kind, table.dtype, dimension)
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header,
        {
            "descr": npy.dtype_to_descr(written),
            "fortran_order": False,
            "shape": (rows.rows, width),
        },
    )
    return RewritePlan(path, (NewBytes(header.getvalue()), rows), rows, kind=kind)


def open_bits(path: Path) -> FileRows:
    """Return the rows of an npy file of bits, uint8 [n, bytes].

    Raises:
        DataError: if the file is missing, or has no table of bits.
    """
    if path.suffix != ".npy" or not path.is_file():
        raise DataError(f"{path}: is no .npy file of bits; name one")
    table = _read_npy_header(path)
    if table.dtype.name != "uint8":
        raise DataError(
            f"{path}: its numbers are {table.dtype.name}, and bits are uint8, eight in a byte; name a "
            "file of bits (quantize_embeddings: ubinary)"
        )
    return table.locate_rows(path)


class _NpyHeader(NamedTuple):
    """Header of an npy file, and the byte `start` at which its numbers begin."""

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]
    start: int

    def locate_rows(self, path: Path) -> FileRows:
        """Return the rows of the file.

        Raises:
            DataError: if the array is not a table stored row by row.
        """
        if len(self.shape) != 2 or self.columns_first or not self.dtype.isnative:
            by_column = ", column by column" if self.columns_first else ""
            raise DataError(
                f"{path}: holds an array {self.shape}{by_column}, not rows of vectors; save it with "
                "np.save(FILE, np.ascontiguousarray(vectors))"
            )
        return FileRows(path, self.start, *self.shape, self.dtype)


def _read_npy_header(path: Path) -> _NpyHeader:
    from numpy.lib import format as npy

    with open_regular(path) as file:
        opening = io.BytesIO(file.read(LONGEST))
    try:
        version = npy.read_magic(opening)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        return _NpyHeader(*read_header(opening), opening.tell())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, TokenError) as error:
        raise DataError(f"{path}: is no npy file ({printable(error, 200)})") from error


def _is_coded(path: Path, dtype: Any, ranges: Path | None, what: str = "vectors") -> bool:
    """Return whether vectors are int8 codes whose ranges are given; refuse all others that are no floats.

    Raises:
        DataError: if they are others, or floats with ranges.
    """
    if dtype.kind == "f" and ranges is not None:
        raise DataError(
            f"{path}: its {what} are {dtype.name}, which have no ranges; take --ranges out"
        )
    if dtype.name != "int8" or ranges is None:
        require_floats(path, dtype, what)
        return False
    return True


def _decode_rows(rows: VectorSource, ranges: Path | None) -> CodedRows:
    from emberge.encoding import Int8Ranges

    assert ranges is not None
    return CodedRows(rows, Int8Ranges.read(ranges, rows.dimension))


def plan_safetensors(
    path: Path, dimension: int, column: str | None, mark: str, ranges: Path | None = None
) -> RewritePlan:
    """Return the plan to rewrite a safetensors file; `mark` names the new space in its header.

    Raises:
        DataError: if the file has no tensor of vectors, or several and none is named.
    """
    import numpy as np

    specs, metadata = _read_specs(path)
    name = _choose_tensor(path, specs, column)
    spec = specs[name]
    if spec.dtype.startswith(("bfloat", "float8", "complex")):
        raise DataError(f"{path}: tensor '{name}' is {spec.dtype}; convert it to F16 or F32 first")
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    is_coded = _is_coded(path, dtype, ranges, f"vectors '{name}'")
    rows: VectorSource = FileRows(path, spec.offset, spec.shape[0], spec.shape[1], dtype)
    rows = _decode_rows(rows, ranges) if is_coded else rows
    changed = replace(spec, shape=(rows.rows, dimension))
    ordered = sorted(specs.values(), key=lambda tensor: (tensor.offset, tensor.nbytes))
    opening, _ = encode_header(
        [changed if tensor is spec else tensor for tensor in ordered], {**metadata, MARK: mark}
    )
    pieces = [
        rows if tensor is spec else KeptBytes(tensor.offset, tensor.nbytes) for tensor in ordered
    ]
    fingerprint, side = read_mark(metadata.get(MARK))
    kind: CodeKind | None = "int8" if is_coded else None
    return RewritePlan(path, (NewBytes(opening), *pieces), rows, fingerprint, side, kind=kind)


def _read_specs(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    try:
        return read_header(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error


def _choose_tensor(path: Path, specs: Mapping[str, TensorSpec], column: str | None) -> str:
    tables = [name for name, tensor in specs.items() if len(tensor.shape) == 2]
    if column is not None:
        if column not in tables:
            raise DataError(
                f"{path}: has no vectors '{column}'; its tables are {', '.join(tables) or 'none'}"
            )
        return column
    if len(tables) != 1:
        tensor_list = ", ".join(tables) or "none"
        raise DataError(f"{path}: has {len(tables)} tables ({tensor_list}); name one with --column")
    return tables[0]
