"""Tables as text: CSV and TSV."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from emberge import BadRow, DataError, Reader


class Delimited(Reader):
    """Comma- or tab-separated text with a heading line, plain or gzip. Empty cells are left out."""

    suffixes = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        delimiter = "\t" if ".tsv" in path.name.lower()[-7:] else ","
        try:
            file = _open(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be opened ({error.strerror})") from None
        with file:
            table = csv.reader(file, delimiter=delimiter, strict=True)
            try:
                names = next(table, [])
                for cells in table:
                    if cells:
                        yield table.line_num, _row(names, cells)
            except UnicodeDecodeError:
                yield table.line_num + 1, BadRow("not UTF-8 from here; save the file as UTF-8")
            except (csv.Error, EOFError, OSError) as error:
                yield table.line_num + 1, BadRow(f"the file is damaged here ({error}); correct it")


def _open(path: Path) -> IO[str]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _row(names: list[str], cells: list[str]) -> Mapping[str, Any] | BadRow:
    if len(cells) != len(names):
        return BadRow(
            f"{len(cells)} cells under {len(names)} headings; quote cells that hold the delimiter"
        )
    return {name: cell if cell else None for name, cell in zip(names, cells, strict=True)}
