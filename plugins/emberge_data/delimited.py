"""Tables as text: CSV with any usual delimiter, and TSV."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from emberge import BadRow, DataError, Reader

# Delimiters of cells; of two that are equally frequent in the heading, the first is the file's.
_DELIMITERS = ",;\t|"


class Delimited(Reader):
    """Delimited text with a heading line, plain or gzip; empty cells are omitted.

    Cells of a .tsv file are separated by tabs. Those of a .csv file are separated by the most frequent of
    comma, semicolon, tab and vertical bar in its heading, as spreadsheets of many countries write semicolons.
    """

    suffixes = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        from emberge.data import LongLineError, open_data_file

        is_tsv = ".tsv" in path.name.lower()[-7:]
        delimiter = "\t" if is_tsv else _find_delimiter(path)
        with open_data_file(path) as file:
            lines = _RowLines(file)
            table = csv.reader(lines, delimiter=delimiter, strict=True)
            try:
                names = next(table, [])
                _require_headings(names, path)
                lines.taken = 0
                for cells in table:
                    lines.taken = 0
                    if cells:
                        yield table.line_num, _read_row(names, cells)
            except UnicodeDecodeError:
                yield table.line_num + 1, BadRow("not UTF-8 from here; save the file as UTF-8")
            except LongLineError as error:
                yield table.line_num + 1, BadRow(f"the row is {error}; see that quotes are closed")
            except csv.Error as error:  # of a line that was counted
                yield table.line_num, BadRow(f"the row cannot be read ({error}); correct it")
            except (EOFError, zlib.error, OSError) as error:
                yield (
                    table.line_num + 1,
                    BadRow(f"the file is damaged here ({error}); fetch it again"),
                )


class _RowLines:
    """Iterator over a table's lines; `taken` counts the bytes of the current row from 0.

    If a quote is not closed, the lines after it become part of the same row.
    """

    def __init__(self, file: IO[bytes]) -> None:
        from emberge.data import LINE_LIMIT

        self._file = file
        self._limit = LINE_LIMIT
        self.taken = 0
        # Of the whole process, and not above the limit here, so that no cell is refused before its row is.
        csv.field_size_limit(max(csv.field_size_limit(), LINE_LIMIT))

    def __iter__(self) -> Iterator[str]:
        from emberge.data import LongLineError

        first = True
        while line := self._file.readline(self._limit + 1):
            self.taken += len(line)
            if self.taken > self._limit:
                raise LongLineError
            text = line.decode("utf-8-sig" if first else "utf-8")
            first = False
            # A lone \r ends a line, too, as it did on old computers.
            yield from io.StringIO(text, newline="") if b"\r" in line else (text,)


def _find_delimiter(path: Path) -> str:
    """Return the delimiter of a table, which is outside of quotes in its first line; a comma without any."""
    from emberge.data import LongLineError, open_data_file

    try:
        with open_data_file(path) as file:
            heading = next(iter(_RowLines(file)), "")
    except (UnicodeDecodeError, LongLineError, EOFError, zlib.error, OSError):
        return ","  # the rows are read next, and have the same fault
    unquoted = "".join(heading.split('"')[::2])
    return max(_DELIMITERS, key=unquoted.count)


def _require_headings(names: list[str], path: Path) -> None:
    """Check that no two columns have the same name.

    Raises:
        DataError: if two names are equal; the message has the second.
    """
    seen = set[str]()
    for name in names:
        if name and name in seen:
            raise DataError(f"{path}:1: two columns are named '{name}'; rename or remove one")
        seen.add(name)


def _read_row(names: list[str], cells: list[str]) -> Mapping[str, Any] | BadRow:
    if len(cells) != len(names):
        return BadRow(
            f"{len(cells)} cells under {len(names)} headings; quote cells that hold the delimiter"
        )
    return {name: cell if cell else None for name, cell in zip(names, cells, strict=True)}
