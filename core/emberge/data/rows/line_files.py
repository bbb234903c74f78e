"""Reading of files of lines, plain or gzip, a line at a time, so that a corpus may have any size."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from emberge.contracts import BadRow
from emberge.errors import DataError
from emberge.files import UnsoundFileError, find_half_surrogate, open_regular


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


def read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file with their numbers from 1, without line ends.

    Raises:
        DataError: if a line cannot be read; names file and line.
    """
    number = 0
    with open_data_file(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(
                f"{path}:{number}: the line is not UTF-8; save the file as UTF-8"
            ) from None
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
    except (RecursionError, ValueError) as error:  # deep nesting, or a number of 4,300 digits
        return BadRow(f"the line is no row ({error}); correct it")
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
