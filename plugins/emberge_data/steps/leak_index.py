"""Texts of tests, and their index: it finds texts that are equal, nearly equal, or share a run of words.

Training texts are searched block by block for the tests in memory; `text_copies` finds copies within one
collection. Both compare texts by `text_similarity`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from emberge import DataError, Evaluator, Workspace
from emberge.contracts import TextRole
from numpy.typing import NDArray

from emberge_data.steps.text_similarity import (
    HASHES,
    RUN_WORDS,
    SHINGLE,
    MinHash,
    compute_jaccard,
    hash_words,
    list_shingles,
    normalise,
    split_words,
)

Pairs = NDArray[np.int64]
Way = Literal["equal", "overlap", "near"]
# Standard deviations of an estimated similarity below the threshold at which a candidate is let go.
_MOST_DEVIATIONS = 4
_PAIRS_AT_ONCE = 4096
# A run of words that is in more texts than this is a set phrase.
COMMON_TEXTS = 10


TESTS_AT_ONCE = 100_000
"""Distinct test texts in memory at a time: about 4 kB each, with a thousand characters."""


def read_test_texts(
    evaluators: Sequence[Evaluator], workspace: Workspace
) -> Iterator[tuple[str, TextRole, str]]:
    """Yield (task, side, text) of all tasks of the evaluators.

    Raises:
        DataError: if the data cannot be read.
    """
    for evaluator in evaluators:
        tasks = {task.name: task for task in evaluator.plan(workspace)}
        for number, (name, task) in enumerate(tasks.items()):
            workspace.progress(number, len(tasks), "tasks", f"texts of {name}")
            texts = evaluator.texts(task, workspace)
            if texts is None:
                raise DataError(f"{type(evaluator).__name__} keeps the texts of {name} to itself")
            yield from ((name, side, text) for side, text in texts)


@dataclass
class LeakTexts:
    """Distinct normalised texts of tests, as they were, and a label of each: `a query of NFCorpus`."""

    texts: list[str] = field(default_factory=list)
    originals: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def gather_blocks(
    texts: Iterable[tuple[str, TextRole, str]], most: int = TESTS_AT_ONCE
) -> Iterator[LeakTexts]:
    """Yield all texts in blocks of at most `most` distinct texts, so that memory is bounded."""
    block, seen = LeakTexts(), set[str]()
    for task, side, text in texts:
        normalised = normalise(text)
        if not normalised or normalised in seen:
            continue
        if len(seen) == most:
            yield block
            block, seen = LeakTexts(), set()
        seen.add(normalised)
        block.texts.append(normalised)
        block.originals.append(text)
        block.labels.append(f"a {side} of {task}")
    if block.texts:
        yield block


@dataclass(frozen=True, slots=True)
class Match:
    """Match of a text with a test text that it contains: both indices, the kind of match, the similarity."""

    text: int
    test: int
    way: Way
    similarity: float = 1.0


class LeakIndex:
    """Index of one block of normalised test texts, which is searched for one block of texts after another."""

    def __init__(self, tests: Sequence[str], threshold: float) -> None:
        self._place = {test: number for number, test in enumerate(tests)}
        self._runs = _Runs(tests)
        self._near = _Near(tests, MinHash(threshold, SHINGLE))

    def find_matches(self, texts: Sequence[str], first: int = 0) -> Iterator[Match]:
        """Yield matches with equal or similar tests for normalised texts, numbered from `first`."""
        for number, text in enumerate(texts):
            if (test := self._place.get(text)) is not None:
                yield Match(first + number, test, "equal")
        for number, test, similarity in self._near.list_pairs(texts):
            yield Match(first + number, test, "near", similarity)
        self._runs.record_shared(texts, first)

    def find_overlaps(self) -> Iterator[Match]:
        """Yield matches of texts and tests that share a run of words, once all texts are searched."""
        return (Match(text, test, "overlap") for text, test in self._runs.list_pairs())


class _Runs:
    """Runs of words in test texts, and the training texts that share them.

    A run in more than COMMON_TEXTS test texts or training texts is a set phrase and no sign of a copy, as in
    GPT-3's filter (Brown et al., 2020, arXiv:2005.14165), which ignores 13 words in more than ten documents.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        owners, hashes = _hash_runs(tests)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._starts, tests_of = np.unique(
            hashes[order], return_index=True, return_counts=True
        )
        self._owners = owners[order]
        self._tests_of = tests_of
        self._texts_of = np.zeros(len(self._hashes), dtype=np.int64)
        self._texts: dict[int, list[int]] = defaultdict(list)

    def record_shared(self, texts: Sequence[str], first: int) -> None:
        """Record the runs that this block of texts shares with test texts."""
        if not len(self._hashes):
            return
        places, hashes = _hash_runs(texts)
        runs = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        is_test_run = (self._hashes[runs] == hashes) & (self._tests_of[runs] <= COMMON_TEXTS)
        for text, run in zip(places[is_test_run].tolist(), runs[is_test_run].tolist(), strict=True):
            self._texts_of[run] += 1
            if self._texts_of[run] <= COMMON_TEXTS:
                self._texts[run].append(first + text)

    def list_pairs(self) -> list[tuple[int, int]]:
        """Return the (text, test) pairs that share a run."""
        pairs = {
            (text, test)
            for run, texts in self._texts.items()
            if self._texts_of[run] <= COMMON_TEXTS
            for test in self._owners[self._starts[run] :][: self._tests_of[run]].tolist()
            for text in texts
        }
        return sorted(pairs)


def _hash_runs(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return (text numbers, hashes) of the distinct runs of each text."""
    hashes, counts = hash_words([split_words(text) for text in texts], RUN_WORDS)
    places = np.repeat(np.arange(len(texts)), counts)
    order = np.lexsort((hashes, places))
    places, hashes = places[order], hashes[order]
    new = np.ones(len(places), dtype=bool)
    new[1:] = (places[1:] != places[:-1]) | (hashes[1:] != hashes[:-1])
    return places[new], hashes[new]


class _Near:
    """MinHash signatures of test texts, and the sort order of their keys in each band."""

    def __init__(self, tests: Sequence[str], minhash: MinHash) -> None:
        self._minhash = minhash
        self._signatures = np.concatenate(
            [minhash.compute_signatures(tests[i : i + 256]) for i in range(0, len(tests), 256)]
        )
        keys = minhash.hash_bands(self._signatures)
        self._order = np.argsort(keys, axis=1, kind="stable")
        self._keys = np.take_along_axis(keys, self._order, axis=1)
        self._shingles = functools.lru_cache(maxsize=4096)(
            lambda test: list_shingles(tests[test], minhash.size)
        )
        deviation = (minhash.threshold * (1 - minhash.threshold) / HASHES) ** 0.5
        self._least = minhash.threshold - _MOST_DEVIATIONS * deviation

    def list_pairs(self, texts: Sequence[str]) -> Iterator[tuple[int, int, float]]:
        """Yield (text, test, similarity) of all pairs at or above the threshold, computed exactly."""
        signatures = self._minhash.compute_signatures(texts)
        text_numbers = np.arange(len(texts))
        bands = zip(self._minhash.hash_bands(signatures), self._keys, self._order, strict=True)
        pairs = np.concatenate(
            [_pair_equal_keys(text_numbers, keys, *sorted_tests) for keys, *sorted_tests in bands]
        )
        candidates = np.unique(pairs, axis=0)
        list_own_shingles = functools.cache(
            lambda text: list_shingles(texts[text], self._minhash.size)
        )
        for text, test in candidates[self._mark_likely_pairs(candidates, signatures)].tolist():
            similarity = compute_jaccard(list_own_shingles(text), self._shingles(test))
            if similarity >= self._minhash.threshold:
                yield text, test, similarity

    def _mark_likely_pairs(self, pairs: Pairs, signatures: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return whether each pair may reach the threshold, judged by its signatures."""
        is_likely = np.zeros(len(pairs), dtype=bool)
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            texts, tests = pairs[start : start + _PAIRS_AT_ONCE].T
            agree = (signatures[texts] == self._signatures[tests]).mean(axis=1)
            is_likely[start : start + _PAIRS_AT_ONCE] = agree >= self._least
        return is_likely


def _pair_equal_keys(
    texts: NDArray[np.int64],
    keys: NDArray[np.uint64],
    test_keys: NDArray[np.uint64],
    tests: NDArray[np.int64],
) -> Pairs:
    """Return the (text, test) pairs [pairs, 2] with equal keys; `test_keys` are sorted."""
    left = np.searchsorted(test_keys, keys, side="left")
    counts = np.searchsorted(test_keys, keys, side="right") - left
    pairs_before = np.cumsum(counts) - counts
    places = np.arange(counts.sum()) + np.repeat(left - pairs_before, counts)
    return np.stack([np.repeat(texts, counts), tests[places]], axis=1)
