"""Prompts that a model's card shows in its examples, where its config has none."""

from __future__ import annotations

import re
from pathlib import Path

from emberge import DataError
from emberge.data import open_data_file

SHOWN = 3
CARD_BYTES = 1 << 20  # that are looked at
# Openings of quoted texts: those of E5 and Nomic Embed, then instructions, as of BGE or GTE.
_PREFIXES = r"(?:(?:search_)?(?:query|passage|document): )"
_INSTRUCTIONS = r"(?:(?:Instruct: |Represent this )[^\"'`\n\\]{0,120})"
_QUOTED = re.compile(rf"[\"'`]({_PREFIXES}|{_INSTRUCTIONS})")


def card_prompts(folder: Path) -> list[str]:
    """Return prompts with which quoted texts of the model card begin, at most three; none without a card."""
    try:
        with open_data_file(folder / "README.md") as file:
            card = file.read(CARD_BYTES).decode("utf-8", errors="replace")
    except DataError:  # there is none, or no file that is one
        return []
    found = _QUOTED.findall(card)
    return [*dict.fromkeys(found)][:SHOWN]
