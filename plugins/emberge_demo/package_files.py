"""Sets of rows in a step's folder, with the catalogue that lists them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast


def even_place(*words: str) -> int:
    """Return a number below 2**64 that is even over words and the same on every machine."""
    return int.from_bytes(blake2b("\x1f".join(words).encode(), digest_size=8).digest(), "big")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as JSON Lines, compressed where the name ends in `.gz`, and return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with (
        path.open("wb") as raw,
        _packed(raw) if path.suffix == ".gz" else raw as plain,
        io.TextIOWrapper(plain, encoding="utf-8", newline="\n") as file,
    ):
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _packed(raw: BinaryIO) -> BinaryIO:
    # Neither a time nor a file name in the header, so that the bytes are the rows' alone.
    return cast("BinaryIO", gzip.GzipFile("", "wb", 6, raw, mtime=0))


def write_catalogue(folder: Path, catalogue: Mapping[str, Any]) -> None:
    """Write `datasets.yaml` into the folder."""
    import yaml

    text = yaml.safe_dump(dict(catalogue), sort_keys=False, allow_unicode=True, width=110)
    (folder / "datasets.yaml").write_text(text, encoding="utf-8")
