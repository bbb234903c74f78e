"""The YAML at the head of a model card, which a stranger wrote: read as text, and never an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from emberge.files import UnsoundFileError, open_regular

__all__ = ["read_front_matter"]

_CARD = "README.md"
_LONGEST = 1 << 20
_NULLS = ("", "~", "null", "Null", "NULL")


def read_front_matter(folder: Path) -> Mapping[str, Any]:
    """Return the front matter of a folder's model card; empty without one, or where it cannot be read.

    Each scalar is text as it was written, so that the language `no` is not False; keys without a value are
    left out.
    """
    try:
        with open_regular(folder / _CARD) as card:
            lines = card.read(_LONGEST).decode("utf-8-sig", errors="replace").splitlines()
        if not lines or lines[0].strip() != "---":
            return {}
        end = next(i for i, line in enumerate(lines[1:], 1) if line.strip() == "---")
        # Anybody writes cards: nothing is merged or repeated that a few lines of aliases could stand for.
        found = yaml.load("\n".join(lines[1:end]), Loader=yaml.BaseLoader)
    except (OSError, UnsoundFileError, StopIteration, yaml.YAMLError, RecursionError):
        return {}
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if value not in _NULLS}
