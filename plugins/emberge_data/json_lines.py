"""JSON Lines, plain or compressed; and what all readers of files need: opening a file, and its lines."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from emberge import BadRow, DataError, Reader
from emberge.errors import UnsoundFileError
from emberge.files import open_regular

_NOT_UTF8 = "the line is not UTF-8; save the file as UTF-8"


class JsonLines(Reader):
    """One JSON object a line, UTF-8, plain or gzip; empty lines are skipped."""

    suffixes = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz")

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        number = 0
        with open_data_file(path) as file:
            try:
                for number, line in enumerate(file, start=1):
                    if number == 1 and (reason := _find_other_format(line)):
                        yield number, BadRow(reason)
                        return
                    if line.strip():
                        yield number, _parse_row(line, number)
            except (EOFError, zlib.error, OSError) as error:
                # What was read so far is reported with it; nothing after it can be read.
                yield number + 1, BadRow(f"the file is damaged here ({error}); fetch it again")


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
                yield number, _decode(line, number).rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{path}:{number}: {_NOT_UTF8}") from None
        except (EOFError, OSError) as error:
            raise DataError(
                f"{path}:{number + 1}: the file is damaged here ({error}); fetch it again"
            ) from None


def _decode(line: bytes, number: int) -> str:
    return line.decode("utf-8-sig" if number == 1 else "utf-8")


def _find_other_format(first_line: bytes) -> str | None:
    """Return the message on a file that begins so if it is CSV or one JSON document; None for JSON Lines."""
    start = first_line.removeprefix(b"\xef\xbb\xbf").strip()
    if start == b"{" or start[:1] == b"[":
        return "this is one JSON document; write one object a line (jq -c '.[]' writes a list so)"
    is_table = re.match(rb"[^{\[]+[,;\t|]", start)
    return "this is not JSON, but looks like CSV; rename the file to .csv" if is_table else None


def _parse_row(line: bytes, number: int) -> Mapping[str, Any] | BadRow:
    """Return the JSON object in a line as a row, or the reason why the line is not such an object."""
    try:
        row = json.loads(_decode(line, number).rstrip("\r\n"))
    except UnicodeDecodeError:
        return BadRow(_NOT_UTF8)
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} at column {error.pos + 1}"
        return BadRow(f"not JSON: {reason}; correct the line")
    except (RecursionError, ValueError) as error:  # deep nesting, or a number of 4,300 digits
        return BadRow(f"the line is no row ({error}); correct it")
    if not isinstance(row, dict):
        kind = "list" if isinstance(row, list) else type(row).__name__
        return BadRow(f"expected an object ({{…}}) on the line, not a {kind}; correct the line")
    if half := _find_half_surrogate(line, row):
        return BadRow(
            f"the line has {half}, half a surrogate pair, which is no character; correct the line"
        )
    return row


# JSON's escapes of surrogates: a character beyond 16 bits is written as two of them.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _find_half_surrogate(raw: bytes, content: Any) -> str | None:
    """Return the first lone surrogate of a JSON document as an escape; None if there is none.

    JSON can contain half of a surrogate pair as an escape. Python parses it, but it cannot be encoded as
    UTF-8, and tokenizers refuse it. `content` is the parsed value of `raw`.

    Raises:
        RecursionError: if the content is nested too deeply to be written.
    """
    if _SURROGATE.search(raw):
        try:
            json.dumps(content, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            return ascii(error.object[error.start])
    return None
