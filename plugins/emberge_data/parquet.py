"""Parquet files, read in batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge import BadRow, DataError, Reader

from emberge_data.json_lines import open_data_file

ROWS_AT_ONCE = 32


class Parquet(Reader):
    """Reader of Parquet files through pyarrow, a batch of rows at a time."""

    suffixes = (".parquet",)

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        import pyarrow as pa
        from pyarrow import parquet

        open_data_file(path).close()  # which refuses what is no regular file
        try:
            file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: not a readable Parquet file ({_shorten_message(error)})"
            ) from None
        number = 0
        with file:
            try:
                for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                    for row in _unpack_rows(batch):
                        number += 1
                        yield number, row
            except (pa.ArrowException, OSError) as error:
                yield (
                    number + 1,
                    BadRow(f"the file is damaged here ({_shorten_message(error)}); fetch it again"),
                )


def _unpack_rows(batch: Any) -> Iterable[Mapping[str, Any] | BadRow]:
    """Return the rows of a batch, unpacked one by one if one cannot be read."""
    # Text not in UTF-8, dates beyond Python's.
    with contextlib.suppress(ValueError, OverflowError):
        rows: list[Mapping[str, Any]] = batch.to_pylist()
        return rows
    return (_unpack_row(batch.slice(number, 1)) for number in range(batch.num_rows))


def _unpack_row(record: Any) -> Mapping[str, Any] | BadRow:
    try:
        row: Mapping[str, Any] = record.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return BadRow(f"a value cannot be read ({_shorten_message(error)}); correct the row")
    return row


def _shorten_message(error: Exception) -> str:
    from emberge.wording import shorten

    return shorten(str(error), 200)
