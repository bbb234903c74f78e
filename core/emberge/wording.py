"""Words of messages: lists that are cut, counts with their nouns, sizes in bytes, and text from outside."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from emberge.errors import RecipeError

__all__ = [
    "count_by_first_word",
    "count_noun",
    "human_size",
    "join_some",
    "parse_size",
    "plural",
    "printable",
    "printable_lines",
]

# Text that is shown as it is without looking at each character.
_PLAIN = re.compile(r"[\n\t -~]*")
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
# Endings of nouns that take more than an s.
_ENDINGS = ((r"(?<![aeiou])y$", "ies"), (r"(s|x|z|ch|sh)$", r"\1es"))


def join_some(words: Iterable[str], most: int = 3) -> str:
    """Return the first `most` words between commas, and the number of the others: `a, b, c and 2 more`."""
    listed = list(words)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def count_noun(count: int, noun: str) -> str:
    """Return the number and the noun in its form for it: `1 step`, `1,200 merge strategies`."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def count_by_first_word(names: Iterable[str]) -> str:
    """Return tensors' names by their first words: `visual (351 tensors), lm_head (1 tensor)`."""
    counted = Counter(name.partition(".")[0] for name in names)
    return ", ".join(f"{word} ({count_noun(n, 'tensor')})" for word, n in counted.items())


def plural(noun: str) -> str:
    """Return the regular plural of an English noun: `steps`, `strategies`, `losses`."""
    for ending, instead in _ENDINGS:
        if re.search(ending, noun):
            return re.sub(ending, instead, noun)
    return f"{noun}s"


def human_size(count: float) -> str:
    """Return a number of bytes in three digits and a decimal unit: `1.3 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def parse_size(size: str | int) -> int:
    """Return the bytes that `512MB`, `2GiB`, `1.5g` or `1000` names.

    Raises:
        RecipeError: for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?\s*", str(size).lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise RecipeError(f"'{size}' is no size; write it as 512MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def printable(text: object, most: int | None = None) -> str:
    r"""Return text from outside for one line of a terminal, a log or a table, without what steers them.

    Control characters (terminal escapes, line ends), lone surrogates and marks of writing direction are
    written as escapes, `\x1b`. With `most`, longer text is cut and ends with an ellipsis.
    """
    shown = "".join(map(_escape_unprintable, str(text)))
    return shown if most is None or len(shown) <= most else f"{shown[: max(most - 1, 0)]}…"


def printable_lines(text: str) -> str:
    """Return text of several lines, each as `printable` shows it; line ends and tabs stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if c in "\n\t" else _escape_unprintable(c) for c in text)


def _escape_unprintable(character: str) -> str:
    if character in "\u200c\u200d":  # joiners, which words of several scripts and emoji need
        return character
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character
