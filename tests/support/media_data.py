"""Small datasets of drawn images and of tones with their captions, and one of texts, in memory."""

from __future__ import annotations

from pathlib import Path

from emberge import Example, MediaFacts, MediaKind, join_parts
from emberge.media import MediaFolder

from tests.support.media_models import RATE, SIDE, drawing, tone
from tests.support.training_data import InMemory, dataset

WORDS = ("list", "file", "path", "name", "value", "text", "string", "number", "table", "row")


def media_set(name: str, kind: MediaKind, folder: Path, rows: int = 10) -> InMemory:
    """Pairs of a medium and its caption."""
    from dataclasses import replace

    place = MediaFolder(folder)
    examples = []
    for row in range(rows):
        if kind == "image":
            media = place.add_image(drawing(row, width=SIDE * (2 + row % 3), height=SIDE * 2))
        else:
            media = place.add_clip(tone(200 + 90 * row, 0.6 + 0.3 * (row % 3)), RATE)
        examples.append(Example(join_parts([media]), (f"the {WORDS[row % 10]} {row}",)))
    found = dataset(name, "retrieval", examples)
    facts = MediaFacts(f"{kind}-text", (kind,), f"{name}:1")
    return replace(found, info=replace(found.info, media=facts), fingerprint=f"{name} {rows}")


def text_set(name: str = "words", rows: int = 10) -> InMemory:
    """Pairs of texts."""
    examples = [
        Example(f"find the {WORDS[row % 10]}", (f"a {WORDS[row % 10]} {row}",))
        for row in range(rows)
    ]
    return dataset(name, "retrieval", examples)


def three_kinds(folder: Path, rows: int = 10) -> list[InMemory]:
    """A set of texts, one of images and one of clips."""
    pictures = media_set("pictures", "image", folder, rows)
    return [text_set(rows=rows), pictures, media_set("tones", "audio", folder, rows)]
