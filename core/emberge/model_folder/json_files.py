"""JSON files of model folders, read so that an error names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError

__all__ = ["read_json", "read_object", "read_object_if_any"]

LONGEST_JSON = 500_000_000
"""Bytes of the longest file that is read: tokenizers of large vocabularies have tens of millions."""


def read_json(path: Path) -> Any:
    """Return a JSON file's content.

    Raises:
        CheckpointError: when it is no JSON, or longer than any of a model.
    """
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise CheckpointError(f"{path}: {path.stat().st_size:,} bytes are no JSON of a model")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON file's object.

    Raises:
        CheckpointError: when it is no JSON object.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must be a JSON object, not a {type(content).__name__}")
    return content


def read_object_if_any(path: Path) -> dict[str, Any]:
    """Return a JSON file's object; an empty one when there is no file, or content of another kind."""
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
