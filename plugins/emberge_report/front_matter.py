"""Reading of untrusted model cards: the front matter as text, and its licence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from emberge.files import UnsoundFileError, open_regular

_CARD = "README.md"
_LONGEST_CARD_BYTES = 1 << 20
_FENCE = "---"
_NULLS = ("", "~", "null", "Null", "NULL")


def read_front_matter(folder: Path) -> Mapping[str, Any]:
    """Return the front matter of a folder's model card; empty if there is none or it cannot be read.

    Each scalar is its text in the file, so that the language `no` is not False; keys without a value are left
    out.
    """
    try:
        with open_regular(folder / _CARD) as card:
            text = card.read(_LONGEST_CARD_BYTES).decode("utf-8-sig", errors="replace")
        # Anybody writes cards: nothing is merged or repeated that a few lines of aliases could stand for.
        content = yaml.load(split_card(text)[0], Loader=yaml.BaseLoader)
    except (OSError, UnsoundFileError, yaml.YAMLError, RecursionError):
        return {}
    if not isinstance(content, Mapping):
        return {}
    return {key: value for key, value in content.items() if value not in _NULLS}


def split_card(text: str) -> tuple[str, str]:
    """Return the YAML at the head of a card and the text below it; "" and the whole text without any."""
    lines = text.split("\n")
    if not lines or lines[0].strip() != _FENCE:
        return "", text
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), None)
    if end is None:
        return "", text
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :])


def stated_licence(front: Mapping[str, Any]) -> str | None:
    """Return the licence that the front matter of a card states; None without one."""
    stated = front.get("license")
    if stated == "other":
        stated = front.get("license_name") or stated
    names = stated if isinstance(stated, list) else [stated]
    licences = [name for name in names if isinstance(name, str) and name not in _NULLS]
    return ", ".join(licences) or None
