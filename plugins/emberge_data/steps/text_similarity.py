"""Similarity of texts: their normal form, shingles and Jaccard similarity, and MinHash to find candidates.

MinHash is implemented here, as libraries were slower (rensa 0.5 two times, datasketch 2.0 thirty times, over
6,000 texts) and keep an index of Python objects in memory; keys here are arrays that may be on disk.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import draw_bits, make_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Counts = NDArray[np.int64]


# Scripts that are written without spaces between words: each of their characters is a word of its own.
_UNSPACED_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED_SCRIPTS}]|[^\s{_UNSPACED_SCRIPTS}]+")
_HASH_MULTIPLIER = 0x9E3779B97F4A7C15
SHINGLE = 4
"""Characters of a shingle, by which texts are near copies."""
RUN_WORDS = 13
"""Words of a run that only copies share."""
HASHES = 128
"""Numbers of a signature."""
# Share of pairs just at the threshold that may get no key in common; of more alike pairs far fewer.
MISSED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class ComparedTexts:
    """Normalised texts of a row. Copies have equal tags, and their texts are compared in order."""

    tag: str
    parts: tuple[str, ...]


class _Comparable(dict[int, str]):
    """Map of character codes to the characters that are compared, filled on first use."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        # Cf are marks for layout, such as a zero-width joiner, and separate nothing.
        self[code] = "" if category == "Cf" else " " if category[0] in "PZC" else chr(code)
        return self[code]


_COMPARABLE = _Comparable()


def normalise(text: str) -> str:
    """Return the text in Unicode NFKC, with case folded, and one space for punctuation and white space.

    Symbols stay (`+`, `$`, `<`: Unicode's category S), as they are content in formulas and code. A text of
    punctuation alone keeps it, so that two texts with different punctuation are not equal.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(folded.translate(_COMPARABLE).split())
    return words or " ".join(folded.split())


def split_words(normalised: str) -> Sequence[str]:
    """Return the words of a normalised text; in scripts without spaces each character is a word."""
    return _WORD.findall(normalised)


def list_shingles(normalised: str, size: int) -> frozenset[str]:
    """Return all runs of `size` characters of a text; a shorter text is one run."""
    last = max(1, len(normalised) - size + 1)
    return frozenset(normalised[start : start + size] for start in range(last))


def compute_jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets: the size of the intersection over that of the union."""
    shared_count = len(first & second)
    return shared_count / (len(first) + len(second) - shared_count)


def hash_characters(normalised: Sequence[str], size: int) -> tuple[Hashes, Counts]:
    """Return the hashes of all texts' shingles, concatenated, and the number of hashes per text."""
    import numpy as np

    padded = [text.ljust(size, "\0") for text in normalised]
    codes = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.array([len(text) for text in padded], dtype=np.int64)
    return _hash_code_runs(codes.astype(np.uint64), lengths, size)


def hash_words(texts: Sequence[Sequence[str]], size: int) -> tuple[Hashes, Counts]:
    """Return the hashes of all texts' runs of `size` words, concatenated, and the number per text."""
    import numpy as np
    from xxhash import xxh3_64_intdigest

    codes = [xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) for t in texts for word in t]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return _hash_code_runs(np.array(codes, dtype=np.uint64), lengths, size)


def _hash_code_runs(codes: Hashes, lengths: Counts, size: int) -> tuple[Hashes, Counts]:
    """Return hashes of all runs of `size` codes inside each text: polynomials modulo 2⁶⁴, then mixed."""
    import numpy as np

    runs = max(0, len(codes) - size + 1)
    hashes = np.zeros(runs, dtype=np.uint64)
    for offset in range(size):
        hashes *= np.uint64(_HASH_MULTIPLIER)
        hashes += codes[offset : offset + runs]
    is_inside = np.ones(len(codes), dtype=bool)
    ends = np.cumsum(lengths)
    for steps_back in range(1, size):  # a run that begins here would end in the next text
        is_inside[np.maximum(ends[ends > 0] - steps_back, 0)] = False
    return mix_bits(hashes[is_inside[:runs]]), np.maximum(lengths - size + 1, 0)


def mix_bits(words: Hashes) -> Hashes:
    """Mix 64-bit words, so that each bit depends on all bits of its word (the end of SplitMix64)."""
    import numpy as np

    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


@dataclass(frozen=True)
class MinHash:
    """Signatures of texts and the keys of their bands (Broder, 1997; Indyk and Motwani, 1998).

    Two texts agree in a number of a signature with a probability that is the Jaccard similarity of their
    shingles of `size` characters. A band is `rows` of the `HASHES` numbers, and the key of a band is a hash
    of them. `rows` is the largest number with which a pair of similarity `threshold` shares a key with a
    probability of at least 1 - MISSED_SHARE. The caller computes the exact similarity of texts with a key in
    common.
    """

    threshold: float
    size: int

    @property
    def rows(self) -> int:
        """Number of signature entries in a band."""
        fitting = (
            rows
            for rows in range(HASHES, 0, -1)
            if (1 - self.threshold**rows) ** (HASHES // rows) <= MISSED_SHARE
        )
        return next(fitting, 1)

    @property
    def bands(self) -> int:
        """Number of bands of a signature."""
        return HASHES // self.rows

    def compute_signatures(self, normalised: Sequence[str], part: int = 0) -> NDArray[np.uint32]:
        """Return the signature of each text [texts, HASHES].

        The element-wise minimum of two texts' signatures is the signature of both texts together. Shingles of
        different `part`s count as different, even if their characters are the same.
        """
        import numpy as np

        hashes, counts = hash_characters(normalised, self.size)
        hashes = mix_bits(hashes + np.uint64(part)) if part else hashes
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        bits = draw_bits(2 * HASHES, make_seed("minhash"))
        lowest = np.empty((HASHES, len(normalised)), dtype=np.uint32)
        for row, (factor, shift) in enumerate(zip(bits[::2] | 1, bits[1::2], strict=True)):
            minima = np.minimum.reduceat(hashes * factor + shift, starts)
            lowest[row] = minima >> np.uint64(32)
        return lowest.T

    def hash_bands(self, signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return the key of each band of signatures [bands, texts]."""
        import numpy as np

        keys = np.empty((self.bands, len(signatures)), dtype=np.uint64)
        for band in range(self.bands):
            band_numbers = signatures[:, band * self.rows : (band + 1) * self.rows].astype(
                np.uint64
            )
            keys[band] = band
            for row in range(self.rows):
                keys[band] = mix_bits(
                    keys[band] * np.uint64(_HASH_MULTIPLIER) + band_numbers[:, row]
                )
        return keys
