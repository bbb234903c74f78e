"""Tables as text: CSV with any usual delimiter, and TSV."""

from __future__ import annotations

import csv
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from emberge import BadRow, DataError, Reader
from emberge.wording import count_noun

from emberge_data.json_lines import open_data_file

# Delimiters of cells; of two that are equally frequent in the heading, the first is the file's.
_DELIMITERS = ",;\t|"


class Delimited(Reader):
    """Delimited text with a heading line, plain or gzip; empty cells are omitted.

    Cells of a .tsv file are separated by tabs. Those of a .csv file are separated by the most frequent of
    comma, semicolon, tab and vertical bar in its heading, as spreadsheets of many countries write semicolons.
    """

    suffixes = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        # Of the whole process: a row may have a cell of any length.
        csv.field_size_limit(2**31 - 1)
        is_tsv = ".tsv" in path.name.lower()[-7:]
        with open_data_file(path) as file:
            lines, table, first = _decode_lines(file), csv.reader(()), 1
            try:
                heading = next(lines, "")
                if heading.lstrip().startswith(("{", "[{")):
                    raise DataError(f"{path}: this looks like JSON; rename the file to .jsonl")
                delimiter = "\t" if is_tsv else _find_delimiter(heading)
                joined = itertools.chain([heading], lines)
                table = csv.reader(joined, delimiter=delimiter, strict=True)
                names = next(table, [])
                _require_headings(names, path)
                first = table.line_num + 1
                for cells in table:
                    if cells:
                        yield table.line_num, _read_row(names, cells)
                    first = table.line_num + 1
            except UnicodeDecodeError:
                yield table.line_num + 1, BadRow("not UTF-8 from here; save the file as UTF-8")
            except csv.Error as error:
                yield (
                    first,
                    BadRow(f"the row cannot be read ({error}); see that quotes are closed"),
                )
            except (EOFError, zlib.error, OSError) as error:
                yield (
                    table.line_num + 1,
                    BadRow(f"the file is damaged here ({error}); fetch it again"),
                )


def _decode_lines(file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a table as text; a lone carriage return ends a line, too, as on old computers."""
    for number, line in enumerate(file):
        text = line.decode("utf-8" if number else "utf-8-sig")
        yield from io.StringIO(text, newline="") if b"\r" in line else (text,)


def _find_delimiter(heading: str) -> str:
    """Return the delimiter of a table, which is outside of quotes in its heading; a comma without any."""
    unquoted = "".join(heading.split('"')[::2])
    return max(_DELIMITERS, key=unquoted.count)


def _require_headings(names: list[str], path: Path) -> None:
    """Check that no two columns have the same name."""
    seen = set[str]()
    for name in names:
        if name and name in seen:
            raise DataError(f"{path}:1: two columns are named '{name}'; rename or remove one")
        seen.add(name)


def _read_row(names: list[str], cells: list[str]) -> Mapping[str, Any] | BadRow:
    if len(cells) != len(names):
        fewer = len(cells) < len(names)
        advice = "complete or remove it" if fewer else "quote cells that contain the delimiter"
        counted = f"{count_noun(len(cells), 'cell')} under {count_noun(len(names), 'heading')}"
        return BadRow(f"{counted}; {advice}")
    return {name: cell if cell else None for name, cell in zip(names, cells, strict=True)}
