"""Images and audio clips in inputs: an input is one `str` with references to media.

The character U+FFFC, Unicode's mark for an embedded object, begins and ends a reference to a file. The
reference contains the file's kind, the hash of its content, and its path. Readers of data write references.
Text that comes from data cannot contain one, as `strip_media_marks` removes the character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, get_args

MediaKind = Literal["image", "audio"]
MEDIA_KINDS: tuple[MediaKind, ...] = get_args(MediaKind)
_MARK = "\ufffc"
# Replacement for the mark in text of data: Unicode's own replacement character.
_REPLACEMENT_CHARACTER = "\ufffd"
_REFERENCE = re.compile(f"{_MARK}(image|audio):([0-9a-f]{{32}}):([^{_MARK}]+){_MARK}")


@dataclass(frozen=True, slots=True)
class Media:
    """Image or audio clip in a file: its kind, the hash of its bytes in hex, and its path.

    Raises:
        ValueError: if the path contains the character U+FFFC.
    """

    kind: MediaKind
    hash: str
    path: str

    def __post_init__(self) -> None:
        if _MARK in self.path or not self.path:
            raise ValueError(f"{self.path!r} cannot be the path of an {self.kind}; rename the file")


@dataclass(frozen=True, slots=True)
class DatasetMediaFacts:
    """Facts of a data set's images and clips, for checks before work; places are `file:line`.

    `pair` is the kind of the dataset's pairs (`image-text`), and `place` is the place of the first image or
    clip. `paths_hash` is a hash of the files' paths.
    """

    pair: str
    kinds: tuple[MediaKind, ...]
    place: str = ""
    paths_hash: str = ""


def join_parts(parts: Sequence[str | Media]) -> str:
    """Join the texts and media of an input, in order, into one text."""
    return "".join(
        part if isinstance(part, str) else f"{_MARK}{part.kind}:{part.hash}:{part.path}{_MARK}"
        for part in parts
    )


def split_parts(text: str) -> list[str | Media]:
    """Return the texts and media of an input in their order; no text among them is empty."""
    if _MARK not in text:
        return [text] if text else []
    parts: list[str | Media] = []
    start = 0
    for match in _REFERENCE.finditer(text):
        parts += [text[start : match.start()]] if match.start() > start else []
        parts.append(Media(*match.groups()))  # type: ignore[arg-type]
        start = match.end()
    return [*parts, text[start:]] if start < len(text) else parts


def has_media(text: str) -> bool:
    """Return whether an input has an image or an audio clip."""
    return _MARK in text and _REFERENCE.search(text) is not None


def list_media_kinds(texts: Iterable[str]) -> tuple[MediaKind, ...]:
    """Return the kinds of media that inputs have, in the order of `MEDIA_KINDS`."""
    kinds = {kind for text in texts if _MARK in text for kind, _, _ in _REFERENCE.findall(text)}
    return tuple(kind for kind in MEDIA_KINDS if kind in kinds)


def find_pair_kind(anchor: str, others: Iterable[str]) -> str:
    """Return the kind of a pair, such as `image-text`: media first, `text` for a side without media."""
    others = tuple(others)
    if _MARK not in anchor and not any(_MARK in text for text in others):
        return "text-text"
    sides = ("+".join(list_media_kinds(texts)) or "text" for texts in ((anchor,), others))
    return "-".join(sorted(sides, key=lambda side: (side == "text", side)))


def strip_media_marks(text: str) -> str:
    """Return text without the character that marks media, so that data cannot refer to files."""
    return text.replace(_MARK, _REPLACEMENT_CHARACTER) if _MARK in text else text


def show_media(text: str) -> str:
    """Return an input in readable form, with media as `[image cat.png]`."""
    if _MARK not in text:
        return text
    return _REFERENCE.sub(lambda found: f"[{found[1]} {PurePath(found[3]).name}]", text)


def make_content_key(text: str) -> str:
    """Return the text with media by hash only: equal for inputs of equal content, whatever their paths."""
    if _MARK not in text:
        return text
    return _REFERENCE.sub(lambda found: f"{_MARK}{found[1]}:{found[2]}{_MARK}", text)
