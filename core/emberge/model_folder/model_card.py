"""Reading of untrusted model cards: the front matter as text, and its licence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from emberge.files import UnsoundFileError, open_regular

_CARD = "README.md"
_LONGEST_CARD_BYTES = 1 << 20
_FENCE = "---"
_SNAPSHOT = re.compile(r"models--(.+?)--(.+)$")
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


def name_of_model(folder: Path, *, by_card: bool = False) -> str:
    """Return the usual name of a model: its hub id if it is in the hub's cache, else its folder's name.

    With `by_card` the name that its card states comes before the folder's.
    """
    snapshot = _SNAPSHOT.match(folder.resolve().parent.parent.name)
    if snapshot and folder.resolve().parent.name == "snapshots":
        return f"{snapshot[1]}/{snapshot[2]}"
    results = read_front_matter(folder).get("model-index") if by_card else None
    first = results[0] if isinstance(results, list) and results else None
    stated = first.get("name") if isinstance(first, Mapping) else None
    return stated if isinstance(stated, str) else folder.name


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
