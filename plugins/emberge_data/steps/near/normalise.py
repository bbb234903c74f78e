"""Texts as they are compared: without case, punctuation, white space and Unicode's ways of writing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# Scripts that are written without spaces between words: each of their characters is a word of its own.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class _Comparable(dict[int, str]):
    """Characters as they are compared, by code, each looked up once."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        # Cf are marks for layout, such as a zero-width joiner, and separate nothing.
        self[code] = "" if category == "Cf" else " " if category[0] in "PZC" else chr(code)
        return self[code]


_COMPARABLE = _Comparable()


def normalise(text: str) -> str:
    """Return the text in Unicode NFKC, with case folded, and one space for punctuation and white space.

    Symbols stay (`+`, `$`, `<`: Unicode's category S), as they are content in formulas and code. Of a text
    of nothing but punctuation the punctuation stays, as such texts are not all equal.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    bare = " ".join(folded.translate(_COMPARABLE).split())
    return bare or " ".join(folded.split())


def words(normalised: str) -> Sequence[str]:
    """Return the words of a normalised text; a character each where a script has no spaces between words."""
    return _WORD.findall(normalised)
