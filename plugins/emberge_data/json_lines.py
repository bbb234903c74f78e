"""JSON Lines, plain or compressed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from emberge import BadRow, DataError, Reader


class JsonLines(Reader):
    """One JSON object a line, UTF-8, plain or gzip; empty lines are passed over."""

    suffixes = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz")

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        try:
            file = _open(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be opened ({error.strerror})") from None
        number = 0
        with file:
            try:
                for line in file:
                    number += 1
                    if line.strip():
                        yield number, _row(line, number)
            except (EOFError, zlib.error, OSError) as error:
                # What was read so far is reported with it; nothing after it can be read.
                yield number + 1, BadRow(f"the file is damaged here ({error}); fetch it again")


def _open(path: Path) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _row(line: bytes, number: int) -> Mapping[str, Any] | BadRow:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError:
        return BadRow("the line is not UTF-8; save the file as UTF-8")
    except RecursionError:
        return BadRow(
            "the line is nested too deeply to be a row; one JSON object a line is expected"
        )
    except json.JSONDecodeError as error:
        whole = line.strip() in (b"[", b"{")
        hint = "; one object a line is expected (jq -c '.[]' writes a list so)" if whole else ""
        return BadRow(
            f"not JSON: {error.msg} at column {error.colno}{hint or '; correct the line'}"
        )
    if not isinstance(row, dict):
        kind = "list" if isinstance(row, list) else type(row).__name__
        return BadRow(
            f"expected an object ({{…}}) on the line, not a {kind} (jq -c '.[]' writes a list so)"
        )
    return row
