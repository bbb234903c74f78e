"""Parquet files, read in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge import BadRow, DataError, Reader

BATCH = 1024


class Parquet(Reader):
    """A Parquet file, read through pyarrow, a batch of rows at a time."""

    suffixes = (".parquet",)

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable Parquet file ({_line(error)})") from None
        number = 0
        with file:
            try:
                for batch in file.iter_batches(batch_size=BATCH):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
            except (pa.ArrowException, OSError) as error:
                yield (
                    number + 1,
                    BadRow(f"the file is damaged here ({_line(error)}); fetch it again"),
                )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
