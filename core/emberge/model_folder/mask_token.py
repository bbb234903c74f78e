"""The mask token in a tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge.model_folder.json_files import read_object

_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def with_mask_token(trunk: Path, token: str) -> dict[str, dict[str, Any]]:
    """Return the files of a transformer's folder, by name, that are to call an existing token its mask."""
    found = {}
    for name in _FILES:
        path = trunk / name
        if path.is_file() or name == _FILES[0]:
            old = read_object(path) if path.is_file() else {}
            found[name] = {**old, "mask_token": token}
    return found
