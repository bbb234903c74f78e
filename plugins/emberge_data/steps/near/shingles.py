"""Shingles: all runs of so many characters, or words, of a text, as sets or as 64-bit hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Counts = NDArray[np.int64]


_BASE = 0x9E3779B97F4A7C15


def shingles(normalised: str, size: int) -> frozenset[str]:
    """Return all runs of `size` characters of a text; the whole text where it is shorter."""
    last = max(1, len(normalised) - size + 1)
    return frozenset(normalised[start : start + size] for start in range(last))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the share of two sets' elements that both have."""
    both = len(one & other)
    return both / (len(one) + len(other) - both)


def character_hashes(normalised: Sequence[str], size: int) -> tuple[Hashes, Counts]:
    """Return hashes of every text's shingles, one text after another, and how many are each text's."""
    import numpy as np

    padded = [text.ljust(size, "\0") for text in normalised]
    codes = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.array([len(text) for text in padded], dtype=np.int64)
    return _run_hashes(codes.astype(np.uint64), lengths, size)


def word_hashes(texts: Sequence[Sequence[str]], size: int) -> tuple[Hashes, Counts]:
    """Return hashes of all runs of `size` words of each text, and how many are each text's; maybe none."""
    import numpy as np
    from xxhash import xxh3_64_intdigest

    codes = [xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) for t in texts for word in t]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return _run_hashes(np.array(codes, dtype=np.uint64), lengths, size)


def _run_hashes(codes: Hashes, lengths: Counts, size: int) -> tuple[Hashes, Counts]:
    """Return hashes of all runs of `size` codes inside each text: polynomials modulo 2⁶⁴, then mixed."""
    import numpy as np

    runs = max(0, len(codes) - size + 1)
    hashes = np.zeros(runs, dtype=np.uint64)
    for place in range(size):
        hashes *= np.uint64(_BASE)
        hashes += codes[place : place + runs]
    inside = np.ones(len(codes), dtype=bool)
    ends = np.cumsum(lengths)
    for back in range(1, size):  # a run that begins here would end in the next text
        inside[np.maximum(ends[ends > 0] - back, 0)] = False
    return mixed(hashes[inside[:runs]]), np.maximum(lengths - size + 1, 0)


def mixed(words: Hashes) -> Hashes:
    """Return words whose every bit depends on all bits of the words given (the end of SplitMix64)."""
    import numpy as np

    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
