"""JSON files of model folders, read so that an error names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import JSON_LIMIT, read_regular
from emberge.files import read_json as read_json_file


def read_json(path: Path) -> Any:
    """Return a JSON file's content.

    Raises:
        CheckpointError: when it is no JSON, or longer than any of a model.
    """
    try:
        return read_json_file(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from None


def read_text(path: Path) -> str:
    """Return the text of a file of a model folder.

    Raises:
        CheckpointError: when it is no UTF-8, or longer than any of a model.
    """
    try:
        return read_regular(path, limit=JSON_LIMIT).decode("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as text ({error})") from None


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
