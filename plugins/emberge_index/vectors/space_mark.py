"""The mark in a file of vectors that names the model and the side of a search that they are of."""

from __future__ import annotations

import json

from emberge_index.translation.translation_file import TranslationHeader

MARK = "emberge.vectors"
"""Key of the mark among a safetensors file's metadata or a parquet file's schema metadata."""


def mark_of(header: TranslationHeader) -> str:
    """Return the mark of vectors that a translation has written."""
    return json.dumps(
        {
            "model": header.target.name,
            "fingerprint": header.target.fingerprint,
            "side": header.side,
            "translated_from": header.source.fingerprint,
        },
        sort_keys=True,
    )


def read_mark(text: str | bytes | None) -> tuple[str | None, str | None]:
    """Return the fingerprint and the side of a mark; None for what it does not name."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return None, None
    if not isinstance(found, dict):
        return None, None
    return found.get("fingerprint"), found.get("side")
