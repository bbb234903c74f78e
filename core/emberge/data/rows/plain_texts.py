"""Texts of a file: a line each, or the column `text` of JSON lines."""

from __future__ import annotations

from pathlib import Path

from emberge.contracts import BadRow
from emberge.data.rows.json_rows import parse_json_row
from emberge.data.rows.line_files import read_text_lines
from emberge.errors import DataError
from emberge.wording import printable

_JSON = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file: its lines that are not empty, or `text` of each row of a .jsonl file.

    Raises:
        DataError: for a file that cannot be read or has no text at all, and, with its line, for a row whose
            `text` is no text.
    """
    lines = ((number, line) for number, line in read_text_lines(path) if line)
    if path.name.lower().endswith(_JSON):
        found = [_text_of(line, number, path) for number, line in lines if line.strip()]
    else:
        found = [line for _, line in lines]
    if not found:
        raise DataError(f"{printable(path)}: has no text; give a line for each")
    return found


def _text_of(line: str, number: int, path: Path) -> str:
    row = parse_json_row(line.encode(), number)
    if isinstance(row, BadRow):
        raise DataError(f"{printable(path)}:{number}: {row.message}")
    text = row.get("text")
    if not isinstance(text, str):
        found = f"'text' is {printable(text, 40)}" if "text" in row else "there is no 'text'"
        raise DataError(
            f"{printable(path)}:{number}: {found}; every row needs a text there, so correct or remove it"
        )
    return text
