"""JSON Lines, plain or compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge import BadRow, Reader


class JsonLines(Reader):
    """One JSON object a line, UTF-8, plain or gzip; empty lines are skipped."""

    suffixes = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz")

    def rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        from emberge.data import open_data_file, parse_json_row

        number = 0
        with open_data_file(path) as file:
            try:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield number, parse_json_row(line, number)
            except (EOFError, zlib.error, OSError) as error:
                # What was read so far is reported with it; nothing after it can be read.
                yield number + 1, BadRow(f"the file is damaged here ({error}); fetch it again")
