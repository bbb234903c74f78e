"""Reading of untrusted files of lines: regular files, plain or gzip, whose lines have a bounded length.

A corpus may have any size, as it is read line by line. The length of a line is bounded, so that a file needs
no more memory than one line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from emberge.contracts import BadRow
from emberge.errors import DataError
from emberge.files import UnsoundFileError, find_half_surrogate, open_regular
from emberge.wording import human_size

LINE_LIMIT = 32 << 20
"""Largest number of bytes of a line or a row, unpacked."""


class LongLineError(ValueError):
    """A line of more than LINE_LIMIT bytes; the lines after it are not read."""

    def __init__(self) -> None:
        super().__init__(
            f"longer than {human_size(LINE_LIMIT)}, so the file is not read further; write one row a line, "
            "and cut texts that are longer"
        )


def open_data_file(path: Path) -> IO[bytes]:
    """Open a regular file of rows for reading; a file whose name ends with .gz is unpacked.

    Raises:
        DataError: if the file is missing, or is not a regular file.
    """
    try:
        file = open_regular(path)
    except UnsoundFileError as error:
        raise DataError(str(error)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be opened ({reason})") from None
    if not path.name.lower().endswith(".gz"):
        return file
    unpacked = gzip.GzipFile(fileobj=file)
    unpacked.myfileobj = cast(Any, file)  # closed with it
    return cast("IO[bytes]", unpacked)


def bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        LongLineError: if a line has more than LINE_LIMIT bytes.
    """
    while line := file.readline(LINE_LIMIT + 1):
        if len(line) > LINE_LIMIT:
            raise LongLineError
        yield line


def read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file with their numbers from 1, without line ends.

    Raises:
        DataError: if a line cannot be read; names file and line.
    """
    number = 0
    with open_data_file(path) as file:
        try:
            for line in bounded_lines(file):
                number += 1
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(
                f"{path}:{number}: the line is not UTF-8; save the file as UTF-8"
            ) from None
        except LongLineError as error:
            raise DataError(f"{path}:{number + 1}: the line is {error}") from None
        except (EOFError, OSError) as error:
            raise DataError(
                f"{path}:{number + 1}: the file is damaged here ({error}); fetch it again"
            ) from None


def parse_json_row(line: bytes, number: int) -> Mapping[str, Any] | BadRow:
    """Return the JSON object in a line as a row, or the reason why the line is not such an object."""
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        row = json.loads(text.rstrip("\r\n"))
    except UnicodeDecodeError:
        return BadRow("the line is not UTF-8; save the file as UTF-8")
    except RecursionError:
        return BadRow(
            "the line is nested too deeply to be a row; one JSON object a line is expected"
        )
    except json.JSONDecodeError as error:
        is_opening_bracket = line.strip() in (b"[", b"{")
        hint = (
            "; one object a line is expected (jq -c '.[]' writes a list so)"
            if is_opening_bracket
            else ""
        )
        return BadRow(
            f"not JSON: {error.msg} at column {error.pos + 1}{hint or '; correct the line'}"
        )
    except ValueError:  # raised for a whole number of more than 4,300 digits
        return BadRow("the line has a number of thousands of digits; correct the line")
    if not isinstance(row, dict):
        kind = "list" if isinstance(row, list) else type(row).__name__
        return BadRow(
            f"expected an object ({{…}}) on the line, not a {kind} (jq -c '.[]' writes a list so)"
        )
    if half := find_half_surrogate(line, row):
        return BadRow(
            f"the line has {half}, half a surrogate pair, which is no character; correct the line"
        )
    return row
