"""Parquet files of vectors: one column of lists is rewritten, and other columns stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.wording import printable

from emberge_index.vectors.pieces import (
    MARK,
    RewritePlan,
    block_rows,
    read_mark,
    require_floats,
    require_width,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


_IDS = ("id", "_id", "ids", "doc_id", "document_id", "key")


@dataclass(frozen=True)
class ColumnRows:
    """Vectors in one column of a parquet file."""

    path: Path
    column: str
    rows: int
    dimension: int
    dtype: Any
    ids: str | None = field(default=None)

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        import numpy as np

        row, waiting, count = 0, [], 0
        for piece in self._read_pieces(first, size):
            waiting.append(piece)
            count += len(piece)
            while count >= size:
                waiting_rows = np.concatenate(waiting)
                yield waiting_rows[:size]
                waiting, count = [waiting_rows[size:]], count - size
                row += size
        if count:
            yield np.concatenate(waiting)

    def _read_pieces(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield the rows from `first` on, in the file's own batches."""
        file, row = _open_file(self.path), 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row + rows > first:
                at = row
                for batch in _iterate_batches(self.path, file, size, [self.column], [group]):
                    if at + len(batch) > first:
                        yield self._convert_column(batch.column(0), at)[max(0, first - at) :]
                    at += len(batch)
            row += rows

    def _convert_column(self, column: Any, row: int) -> NDArray[Any]:
        import numpy as np

        flat = column.flatten()
        if column.null_count or flat.null_count or len(flat) != len(column) * self.dimension:
            self._refuse(column, row)
        values = np.asarray(flat.to_numpy(zero_copy_only=False), self.dtype)
        return values.reshape(-1, self.dimension)

    def _refuse(self, column: Any, row: int) -> None:
        for number, values in enumerate(column.to_pylist()):
            if values is None or len(values) != self.dimension or None in values:
                has = "nothing" if values is None else f"{len(values)} numbers"
                raise DataError(
                    f"{self.path}: row {self.name_of(row + number)} has {has} in '{self._shown}', not "
                    f"{self.dimension:,} as the first row; mend or remove it"
                )

    def name_of(self, row: int) -> str:
        if self.ids is None:
            return f"{row:,}"
        file, start = _open_file(self.path), 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if row < start + count:
                with _explain_errors(self.path):
                    id_value = file.read_row_group(group, columns=[self.ids]).column(0)[row - start]
                return f"{row:,} ({self.ids} {printable(repr(id_value.as_py()), 100)})"
            start += count
        return f"{row:,}"

    def numbers_of(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows

    @property
    def _shown(self) -> str:
        return printable(self.column, 100)

    @cached_property
    def type(self) -> Any:
        """Type of the column."""
        return _open_file(self.path).schema_arrow.field(self.column).type


def plan_parquet(path: Path, column: str | None, mark: str) -> RewritePlan:
    """Return the plan to rewrite a parquet file's column; rows are mapped before the file is written.

    `mark` is the text that names the new space in the file's metadata.

    Raises:
        DataError: if the file has no column of lists of floats, or several and none is named.
    """
    with _explain_errors(path):
        return _build_plan(path, column, mark)


def _build_plan(path: Path, column: str | None, mark: str) -> RewritePlan:
    import numpy as np

    file = _open_file(path)
    schema = file.schema_arrow
    name = _choose_column(path, schema, column)
    type_ = schema.field(name).type
    dtype = np.dtype(type_.value_type.to_pandas_dtype())
    require_floats(path, dtype, f"vectors '{printable(name, 100)}'")
    rows = file.metadata.num_rows
    ids = next((one for one in _IDS if one in schema.names), None)
    dimension = _read_dimension(path, file, name, type_)
    if rows:
        require_width(path, dimension)
        _require_no_longer(path, file, name, dimension)
    table = ColumnRows(path, name, rows, dimension, dtype, ids)
    fingerprint, side = read_mark((schema.metadata or {}).get(MARK.encode()))
    return RewritePlan(
        path, (table,), table, fingerprint, side, finish=partial(_write_file, table, mark)
    )


def _write_file(rows: ColumnRows, mark: str, mapped: NDArray[Any], out: Path) -> None:
    """Write the file with mapped vectors [n, k] and all other columns unchanged, a block per row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = block_rows(rows.dimension, mapped.shape[1])
    file = _open_file(rows.path)
    schema = file.schema_arrow
    index = schema.get_field_index(rows.column)
    type_ = _build_type(rows.type, mapped.shape[1])
    schema = schema.set(index, schema.field(index).with_type(type_))
    schema = schema.with_metadata({**(schema.metadata or {}), MARK: mark})
    compression = (
        file.metadata.row_group(0).column(0).compression if file.num_row_groups else "NONE"
    )
    other_columns = [name for name in schema.names if name != rows.column]
    codecs = dict.fromkeys(other_columns, compression) or "NONE"
    rows_written = 0
    with pq.ParquetWriter(
        out,
        schema,
        compression=codecs,
        use_dictionary=other_columns,
        write_statistics=other_columns or False,
    ) as writer:
        for batch in _iterate_batches(rows.path, file, size, other_columns or [rows.column]):
            part = mapped[rows_written : rows_written + len(batch)]
            columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
            columns[rows.column] = _build_lists(part, type_)
            table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
            writer.write_table(table, row_group_size=size)
            rows_written += len(batch)


def _open_file(path: Path) -> Any:
    import pyarrow.parquet as pq

    with _explain_errors(path):
        return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors on a damaged file into a DataError that names the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:  # also names in no UTF-8
        raise DataError(
            f"{path}: is no parquet file, or damaged ({printable(error, 200)}); copy it again"
        ) from error


def _iterate_batches(
    path: Path, file: Any, size: int, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[Any]:
    """Yield batches of `size` rows."""
    batches = file.iter_batches(size, row_groups=groups, columns=columns)
    while True:
        with _explain_errors(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _require_no_longer(path: Path, file: Any, name: str, dimension: int) -> None:
    """Refuse a column whose metadata shows rows longer than its first row, as they could exhaust the memory.

    Raises:
        DataError: if it has; the message has the column's number of values.
    """
    for group in range(file.num_row_groups):
        group_metadata = file.metadata.row_group(group)
        chunks = (
            group_metadata.column(column_number)
            for column_number in range(group_metadata.num_columns)
        )
        values = sum(c.num_values for c in chunks if c.path_in_schema.startswith(f"{name}."))
        if values > group_metadata.num_rows * dimension:
            raise DataError(
                f"{path}: column '{printable(name, 100)}' has {values:,} numbers in "
                f"{group_metadata.num_rows:,} rows from {group:,} on, more than {dimension:,} "
                "each as the first row; make all rows alike"
            )


def _is_list(type_: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(kind(type_) for kind in kinds) and (
        pa.types.is_floating(type_.value_type) or pa.types.is_integer(type_.value_type)
    )


def _choose_column(path: Path, schema: Any, column: str | None) -> str:
    lists = [field.name for field in schema if _is_list(field.type)]
    if column is not None:
        if column not in lists:
            column_list = printable(", ".join(lists) or "none", 200)
            raise DataError(
                f"{path}: has no column of vectors '{printable(column)}'; it has {column_list}"
            )
        return column
    if len(lists) != 1:
        column_list = printable(", ".join(lists) or "none", 200)
        raise DataError(
            f"{path}: has {len(lists)} columns of lists ({column_list}); name one with --column"
        )
    return str(lists[0])


def _read_dimension(path: Path, file: Any, name: str, type_: Any) -> int:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(type_):
        return int(type_.list_size)
    for batch in _iterate_batches(path, file, 1, [name]):
        first_list = batch.column(0)[0].as_py()
        return len(first_list) if first_list is not None else 0
    return 0


def _build_type(type_: Any, dimension: int) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field, dimension)
    return type_


def _build_lists(part: NDArray[Any], type_: Any) -> Any:
    """Return rows as an array of lists."""
    import numpy as np
    import pyarrow as pa

    values = pa.array(part.reshape(-1), type=type_.value_type)
    if pa.types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(values, type=type_)
    ends = np.arange(len(part) + 1) * part.shape[1]
    if pa.types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values, type=type_)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=type_)
