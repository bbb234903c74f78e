"""A handbook of made-up pages, whose headings and sentences are all different."""

from __future__ import annotations

import random
from pathlib import Path

_NOUNS = """
    hose pump valve filter fence gate ladder bucket rake spade barrow shears shed roof gutter
    tank tap bed soil seed hedge lawn path stone brick paint brush glove boot rope chain hook
    nail screw
"""
_ACTS = """
    cleans mends stores checks moves fills empties paints cuts lifts
"""
_THINGS, _VERBS = _NOUNS.split(), _ACTS.split()


def write_handbook(folder: Path, *, documents: int, seed: int = 0) -> Path:
    """Write Markdown pages with a title, an opening and two chapters each; return the folder."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    for number in range(documents):
        first, second, third = draw.sample(_THINGS, 3)
        chapters = "\n\n".join(
            f"## When the {thing} needs the {other}\n\n{_write_sentences(draw, thing, number)}"
            for thing, other in ((second, third), (third, first))
        )
        text = f"# Care of {first} number {number}\n\n{_write_sentences(draw, first, number)}\n\n{chapters}\n"
        (folder / f"page-{number:03}.md").write_text(text, "utf-8")
    return folder


def _write_sentences(draw: random.Random, thing: str, number: int) -> str:
    sentences = []
    for _ in range(4):
        one, two = draw.sample(_THINGS, 2)
        first, second = draw.choice(_VERBS), draw.choice(_VERBS)
        sentences.append(
            f"The {thing} of house {number} {first} the {one} before it {second} the {two}."
        )
    return " ".join(sentences)
