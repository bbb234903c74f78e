"""Index of test texts: those that a text equals, shares a run of words with, or nearly equals."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from emberge_data.steps.near.minhash import HASHES, MinHash
from emberge_data.steps.near.normalise import words
from emberge_data.steps.near.shingles import jaccard, shingles, word_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pairs = NDArray[np.int64]

__all__ = ["Likeness", "Match", "TestIndex", "Way"]

Way = Literal["equal", "overlap", "near"]
# Standard deviations of an estimated similarity below the threshold at which a candidate is let go.
_DEVIATIONS = 4
_AT_ONCE = 4096


@dataclass(frozen=True)
class Likeness:
    """Ways in which a text holds a test text, beside being equal to it; None for a way not taken.

    `words` is the length of a run of words that both have, `jaccard` the similarity of their shingles of
    `shingle` characters.
    """

    words: int | None
    jaccard: float | None
    shingle: int


@dataclass(frozen=True, slots=True)
class Match:
    """One text of a block that holds a test text, both by their places, and in which way."""

    text: int
    test: int
    way: Way


class TestIndex:
    """Index of one block of normalised test texts."""

    __test__ = False  # for pytest: the name is a noun

    def __init__(self, tests: Sequence[str], likeness: Likeness) -> None:
        self._place = {test: place for place, test in enumerate(tests)}
        self._runs = None if likeness.words is None else _Runs(tests, likeness.words)
        self._near = (
            None
            if likeness.jaccard is None
            else _Near(tests, MinHash(likeness.jaccard, likeness.shingle))
        )

    def matches(self, texts: Sequence[str]) -> Iterator[Match]:
        """Yield every match of a block of normalised texts, each pair once, in the first way that fits."""
        met: set[tuple[int, int]] = set()
        for way, pairs in self._found(texts):
            new = [(text, test) for text, test in pairs if (text, test) not in met]
            met.update(new)
            yield from (Match(text, test, way) for text, test in new)

    def _found(self, texts: Sequence[str]) -> Iterator[tuple[Way, list[list[int]]]]:
        places = ((text, self._place.get(words)) for text, words in enumerate(texts))
        yield "equal", [[text, test] for text, test in places if test is not None]
        if self._runs is not None:
            yield "overlap", self._runs.pairs(texts).tolist()
        if self._near is not None:
            yield "near", self._near.pairs(texts).tolist()


class _Runs:
    """Runs of so many words in test texts, in order, with the test of each."""

    def __init__(self, tests: Sequence[str], size: int) -> None:
        self._size = size
        hashes, counts = word_hashes([words(test) for test in tests], size)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._tests = np.repeat(np.arange(len(tests)), counts)[order]

    def pairs(self, texts: Sequence[str]) -> Pairs:
        """Return (text, test) of all that have a run in common."""
        hashes, counts = word_hashes([words(text) for text in texts], self._size)
        found = np.repeat(np.arange(len(texts)), counts)
        return np.unique(_pairs(found, hashes, self._hashes, self._tests), axis=0)


class _Near:
    """MinHash signatures of test texts, and the order of their keys in each band."""

    def __init__(self, tests: Sequence[str], minhash: MinHash) -> None:
        self._minhash = minhash
        self._signatures = np.concatenate(
            [minhash.signatures(tests[i : i + 256]) for i in range(0, len(tests), 256)]
        )
        keys = minhash.keys(self._signatures)
        self._order = np.argsort(keys, axis=1, kind="stable")
        self._keys = np.take_along_axis(keys, self._order, axis=1)
        self._shingles = functools.lru_cache(maxsize=4096)(
            lambda test: shingles(tests[test], minhash.size)
        )
        deviation = (minhash.threshold * (1 - minhash.threshold) / HASHES) ** 0.5
        self._least = minhash.threshold - _DEVIATIONS * deviation

    def pairs(self, texts: Sequence[str]) -> Pairs:
        """Return (text, test) of all that are as alike as the threshold, by exact comparison."""
        signatures = self._minhash.signatures(texts)
        every = np.arange(len(texts))
        bands = zip(self._minhash.keys(signatures), self._keys, self._order, strict=True)
        found = [_pairs(every, keys, *own) for keys, *own in bands]
        candidates = np.unique(np.concatenate(found), axis=0)
        likely = candidates[self._likely(candidates, signatures)]
        mine = functools.cache(lambda text: shingles(texts[text], self._minhash.size))
        alike = [
            jaccard(mine(text), self._shingles(test)) >= self._minhash.threshold
            for text, test in likely.tolist()
        ]
        return likely[np.array(alike, dtype=bool)]

    def _likely(self, pairs: Pairs, signatures: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return flags of the pairs whose signatures do not rule the threshold out."""
        likely = np.zeros(len(pairs), dtype=bool)
        for start in range(0, len(pairs), _AT_ONCE):
            texts, tests = pairs[start : start + _AT_ONCE].T
            agree = (signatures[texts] == self._signatures[tests]).mean(axis=1)
            likely[start : start + _AT_ONCE] = agree >= self._least
        return likely


def _pairs(
    texts: NDArray[np.int64],
    keys: NDArray[np.uint64],
    test_keys: NDArray[np.uint64],
    tests: NDArray[np.int64],
) -> Pairs:
    """Return (text, test) of equal keys [pairs, 2]; `test_keys` are in order."""
    left = np.searchsorted(test_keys, keys, side="left")
    counts = np.searchsorted(test_keys, keys, side="right") - left
    before = np.cumsum(counts) - counts
    places = np.arange(counts.sum()) + np.repeat(left - before, counts)
    return np.stack([np.repeat(texts, counts), tests[places]], axis=1)
