"""Near copies within one collection of texts or rows, by the Jaccard similarity of their shingles.

All keys are on disk, so that memory is bounded; `leak_index` finds copies of tests among other texts.
"""

from __future__ import annotations

import functools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from emberge_data.steps.text_similarity import (
    ComparedTexts,
    MinHash,
    compute_jaccard,
    list_shingles,
    mix_bits,
)

_ENTRIES_AT_ONCE = 1 << 16
_TEXTS_AT_ONCE = 512


def find_shared_keys(
    numbers: NDArray[np.int64],
    keys_of: Callable[[list[int]], NDArray[np.uint64]],
    bands: int,
    folder: Path,
) -> Iterator[tuple[int, list[int]]]:
    """Yield each of `numbers` that shares a key with another, in order, with the ids of its groups.

    A group has all numbers with one key in one band.

    `keys_of` returns the keys [bands, numbers] of a block of numbers. All keys are in an unnamed file in
    `folder`. Memory holds 16 bytes for each number while a band is sorted, and 16 for each key that numbers
    share.
    """
    if not len(numbers):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        keys = np.memmap(file, np.uint64, "w+", shape=(bands, len(numbers)))
        for start in range(0, len(numbers), _TEXTS_AT_ONCE):
            block = slice(start, start + _TEXTS_AT_ONCE)
            keys[:, block] = keys_of(numbers[block].tolist())
        places, buckets = _group_by_key(keys)

    def list_entries() -> Iterator[tuple[int, int]]:
        for start in range(0, len(places), _ENTRIES_AT_ONCE):
            part = slice(start, start + _ENTRIES_AT_ONCE)
            yield from zip(numbers[places[part]].tolist(), buckets[part].tolist(), strict=True)

    for number, group in groupby(list_entries(), key=itemgetter(0)):
        yield number, [bucket for _, bucket in group]


def _group_by_key(bands: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places that share a key in a band, with the key's bucket, in order of the places."""
    places: list[NDArray[np.int64]] = []
    buckets: list[NDArray[np.int64]] = []
    count = 0
    for keys in bands:
        order = np.argsort(keys, kind="stable")
        is_equal = np.diff(keys[order]) == 0
        # Whether each key equals the one before; one more at the end.
        equals_previous = np.concatenate([[False], is_equal, [False]])
        starts_group = equals_previous[1:] & ~equals_previous[:-1]
        has_partner = equals_previous[:-1] | starts_group
        places.append(order[has_partner])
        buckets.append(np.cumsum(starts_group)[has_partner] + count)
        count += int(starts_group.sum())
    shared_places = np.concatenate(places)
    order = np.argsort(shared_places, kind="stable")
    return shared_places[order], np.concatenate(buckets)[order]


def join_near_copies(
    texts_of: Callable[[int], ComparedTexts],
    numbers: NDArray[np.int64],
    folder: Path,
    *,
    threshold: float,
    size: int,
) -> NDArray[np.int64]:
    """Return, for each of the ascending `numbers`, the first number of its group of near copies.

    Two numbers are in one group if their tags are equal and the Jaccard similarity of each part of their
    texts reaches the threshold, or if a sequence of such pairs leads from one to the other (as in Lee et al.,
    2022, arXiv:2107.06499). Candidates share a key of MinHash, of the signature of all parts' shingles
    together: if each part reaches the threshold, so do the shingles of all parts together. Their similarity
    is then computed from the shingles.
    """
    minhash = MinHash(threshold, size)

    def hash_block(block: list[int]) -> NDArray[np.uint64]:
        texts = [texts_of(number) for number in block]
        signatures = minhash.compute_signatures([one.parts[0] for one in texts])
        more = [place for place, one in enumerate(texts) if len(one.parts) > 1]
        if more:
            others = minhash.compute_signatures([texts[place].parts[1] for place in more], part=1)
            signatures[more] = np.minimum(signatures[more], others)
        tags = np.array([_hash(one.tag) for one in texts], dtype=np.uint64)
        return mix_bits(minhash.hash_bands(signatures) + tags)

    @functools.lru_cache(maxsize=4096)
    def list_part_shingles(number: int) -> tuple[str, list[frozenset[str]]]:
        texts = texts_of(number)
        return texts.tag, [list_shingles(part, size) for part in texts.parts]

    def is_near_copy(number: int, other: int) -> bool:
        (tag, part_sets), (other_tag, other_part_sets) = map(list_part_shingles, (number, other))
        alike = tag == other_tag and len(part_sets) == len(other_part_sets)
        return alike and all(
            map(lambda a, b: compute_jaccard(a, b) >= threshold, part_sets, other_part_sets)
        )

    groups = _Groups()
    members: dict[int, dict[int, list[int]]] = defaultdict(dict)  # by bucket, then by group
    for number, buckets in find_shared_keys(numbers, hash_block, minhash.bands, folder):
        for bucket in buckets:
            groups.join_alike(number, members[bucket], is_near_copy)
            members[bucket].setdefault(groups.find_first(number), []).append(number)
    return np.array([groups.find_first(number) for number in numbers.tolist()], dtype=np.int64)


class _Groups:
    """Groups of numbers, joined two at a time; the first number of a group stands for it."""

    def __init__(self) -> None:
        self._earlier: dict[int, int] = {}

    def find_first(self, number: int) -> int:
        """Return the first number of a number's group."""
        while (earlier := self._earlier.get(number, number)) != number:
            self._earlier[number] = self._earlier.get(earlier, earlier)
            number = self._earlier[number]
        return number

    def join_alike(
        self, number: int, members: Mapping[int, list[int]], same: Callable[[int, int], bool]
    ) -> None:
        """Join a number with the groups that have a member which is the same; `members` are by group."""
        for group, others in members.items():
            first, second = sorted((self.find_first(group), self.find_first(number)))
            if first != second and any(same(number, other) for other in others):
                self._earlier[second] = first


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
