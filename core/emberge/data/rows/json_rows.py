"""Reader of JSON Lines: one row, a JSON object, on each line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from emberge.contracts import BadRow

# Escapes of surrogates, each of which is half a character.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json_row(line: bytes, number: int) -> Mapping[str, Any] | BadRow:
    """Return the JSON object of a line as a row, or the reason why it is none."""
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
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        return BadRow("the line has a number of thousands of digits; correct the line")
    if not isinstance(row, dict):
        kind = "list" if isinstance(row, list) else type(row).__name__
        return BadRow(
            f"expected an object ({{…}}) on the line, not a {kind} (jq -c '.[]' writes a list so)"
        )
    if _SURROGATE.search(line) and not _is_text(row):
        return BadRow("the line has half a surrogate pair, which is no character; correct the line")
    return row


def _is_text(row: Mapping[str, Any]) -> bool:
    """Return whether all characters of a row can be written."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
