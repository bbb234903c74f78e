"""Prompts that a model's card shows in its examples, where its config has none."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["card_prompts"]

SHOWN = 3
# Openings of quoted texts: those of E5 and Nomic Embed, then instructions, as of BGE or GTE.
_PREFIXES = r"(?:(?:search_)?(?:query|passage|document): )"
_INSTRUCTIONS = r"(?:(?:Instruct: |Represent this )[^\"'`\n\\]{0,120})"
_QUOTED = re.compile(rf"[\"'`]({_PREFIXES}|{_INSTRUCTIONS})")


def card_prompts(folder: Path) -> list[str]:
    """Return prompts with which quoted texts of the model card begin, at most three; none without a card."""
    card = folder / "README.md"
    if not card.is_file():
        return []
    found = _QUOTED.findall(card.read_text(encoding="utf-8", errors="replace"))
    return [*dict.fromkeys(found)][:SHOWN]
