"""JSON files of models and results, changed where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def changing(path: Path) -> Iterator[Any]:
    """Yield a file's content, an empty object without the file, and write it back at the end of the block."""
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    yield content
    path.write_text(json.dumps(content), "utf-8")


def edit(folder: Path, file: str, **changes: Any) -> None:
    """Set keys of a file's object."""
    with changing(folder / file) as content:
        content |= changes
