"""Texts and rows that are nearly copies by the Jaccard similarity of their shingles."""

from __future__ import annotations

import functools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

from emberge_data.steps.text_similarity import ComparedTexts, MinHash, jaccard, mix_bits, shingles

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ENTRIES_AT_ONCE = 1 << 16
_TEXTS_AT_ONCE = 512


class SharedKeys:
    """Texts or rows that share a key with another one, by their numbers; others are dropped.

    While keys are gathered, they are in one file for each band; then they are read band by band. Memory holds
    8 bytes for each number, 24 while a band is sorted, and 16 for each key that numbers share.
    """

    def __init__(
        self, keys: Iterable[tuple[list[int], NDArray[np.uint64]]], bands: int, folder: Path
    ) -> None:
        """Write blocks of numbers, which ascend, and their keys [bands, numbers] to files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"band-{band}.keys" for band in range(bands)]
        numbers = array("q")
        with ExitStack() as stack:
            band_files = [stack.enter_context(file.open("wb")) for file in files]
            for block, block_keys in keys:
                numbers.extend(block)
                for band, file in enumerate(band_files):
                    file.write(block_keys[band].tobytes())
        self._numbers = np.frombuffer(numbers, np.int64) if numbers else np.zeros(0, np.int64)
        self._places, self._buckets = _group_by_key(files)

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        """Yield numbers in order, each with the buckets of its shared keys."""
        for number, group in groupby(self._yield_entries(), key=itemgetter(0)):
            yield number, [bucket for _, bucket in group]

    def _yield_entries(self) -> Iterator[tuple[int, int]]:
        for start in range(0, len(self._places), _ENTRIES_AT_ONCE):
            places = self._places[start : start + _ENTRIES_AT_ONCE]
            buckets = self._buckets[start : start + _ENTRIES_AT_ONCE]
            yield from zip(self._numbers[places].tolist(), buckets.tolist(), strict=True)


def _group_by_key(files: Iterable[Path]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places that share a key, with the key's bucket, in order; remove the files."""
    places: list[NDArray[np.int64]] = []
    buckets: list[NDArray[np.int64]] = []
    count = 0
    for file in files:
        keys = np.fromfile(file, np.uint64)
        file.unlink()
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        equals_previous = np.zeros(
            len(keys) + 1, dtype=bool
        )  # equal to the one before; one more at the end
        equals_previous[1:-1] = keys[1:] == keys[:-1]
        starts_group = equals_previous[1:] & ~equals_previous[:-1]
        has_partner = equals_previous[:-1] | starts_group
        places.append(order[has_partner])
        buckets.append(np.cumsum(starts_group)[has_partner] + count)
        count += int(starts_group.sum())
    shared_places = np.concatenate([np.zeros(0, np.int64), *places])
    order = np.argsort(shared_places, kind="stable")
    return shared_places[order], np.concatenate([np.zeros(0, np.int64), *buckets])[order]


def near_copies(
    texts_of: Callable[[int], ComparedTexts],
    kept: NDArray[np.int64],
    folder: Path,
    *,
    threshold: float,
    size: int,
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) of `kept` rows whose parts all reach the threshold of similarity.

    Candidates share a key of MinHash; their Jaccard similarity is then computed from the shingles, so no pair
    below the threshold is found. Keys come from the signature of all parts' shingles together: if each part
    reaches the threshold, so do the shingles of all parts together.
    """
    minhash = MinHash(threshold, size)

    def keys() -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        for start in range(0, len(kept), _TEXTS_AT_ONCE):
            block = kept[start : start + _TEXTS_AT_ONCE].tolist()
            texts = [texts_of(row) for row in block]
            signatures = minhash.signatures([one.parts[0] for one in texts])
            more = [number for number, one in enumerate(texts) if len(one.parts) > 1]
            if more:
                others = minhash.signatures([texts[number].parts[1] for number in more], part=1)
                signatures[more] = np.minimum(signatures[more], others)
            tags = np.array([_hash(one.tag) for one in texts], dtype=np.uint64)
            yield block, mix_bits(minhash.keys(signatures) + tags)

    @functools.lru_cache(maxsize=4096)
    def sets(row: int) -> tuple[str, list[frozenset[str]]]:
        texts = texts_of(row)
        return texts.tag, [shingles(part, size) for part in texts.parts]

    def same(row: int, other: int) -> bool:
        (tag, part_sets), (other_tag, other_part_sets) = sets(row), sets(other)
        alike = tag == other_tag and len(part_sets) == len(other_part_sets)
        return alike and all(
            map(lambda a, b: jaccard(a, b) >= threshold, part_sets, other_part_sets)
        )

    yield from _first_copies(SharedKeys(keys(), minhash.bands, folder), same)


def _first_copies(
    shared: Iterable[tuple[int, list[int]]], same: Callable[[int, int], bool]
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row that it is a copy of); the earlier row is never a copy itself.

    Each row is compared only with earlier rows that are kept, so a thousand copies of a text cost a thousand
    comparisons and not a million.
    """
    stay: dict[int, list[int]] = defaultdict(list)  # rows by bucket
    for row, buckets in shared:
        candidates = dict.fromkeys(other for bucket in buckets for other in stay.get(bucket, ()))
        earlier = next((other for other in candidates if same(row, other)), None)
        if earlier is not None:
            yield row, earlier
            continue
        for bucket in buckets:
            stay[bucket].append(row)


def join_near_texts(
    texts: Sequence[str], numbers: NDArray[np.int64], folder: Path, *, threshold: float, size: int
) -> NDArray[np.int64]:
    """Return, for each normalised text, the number of the first text of its group of near copies.

    Only the texts with these `numbers`, in ascending order, are compared; others are groups of their own. Two
    texts are in one group if their Jaccard similarity reaches the threshold, or if a sequence of such pairs
    leads from one to the other, unlike in `near_copies`, where a row is a copy of one other row.
    """
    minhash = MinHash(threshold, size)

    def keys() -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        for start in range(0, len(numbers), _TEXTS_AT_ONCE):
            block = numbers[start : start + _TEXTS_AT_ONCE].tolist()
            yield block, minhash.keys(minhash.signatures([texts[number] for number in block]))

    @functools.lru_cache(maxsize=4096)
    def shingles_of(number: int) -> frozenset[str]:
        return shingles(texts[number], size)

    groups = _Groups(len(texts))
    members: dict[int, dict[int, list[int]]] = defaultdict(dict)  # by bucket, then by group
    for number, buckets in SharedKeys(keys(), minhash.bands, folder):
        for bucket in buckets:
            for group, others in members[bucket].items():
                if groups.first(group) != groups.first(number) and any(
                    jaccard(shingles_of(number), shingles_of(other)) >= threshold
                    for other in others
                ):
                    groups.join(group, number)
            members[bucket].setdefault(groups.first(number), []).append(number)
    return np.array([groups.first(number) for number in range(len(texts))], dtype=np.int64)


class _Groups:
    """Groups of numbers, joined two at a time; the first number of a group stands for it."""

    def __init__(self, count: int) -> None:
        self._earlier = list(range(count))

    def first(self, number: int) -> int:
        """Return the first number of a number's group."""
        while self._earlier[number] != number:
            self._earlier[number] = self._earlier[self._earlier[number]]
            number = self._earlier[number]
        return number

    def join(self, number: int, other: int) -> None:
        """Make one group of the groups of two numbers."""
        first, second = sorted((self.first(number), self.first(other)))
        self._earlier[second] = first


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
