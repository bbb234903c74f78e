"""Ways in which two rows are copies: equal once normalised, or near by the Jaccard similarity of shingles."""

from __future__ import annotations

import functools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

from emberge_data.steps.text_similarity import MinHash, jaccard, mix_bits, shingles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from emberge_data.steps.deduplicate.units import ComparedTexts, RowsInOrder


_ENTRIES_AT_ONCE = 1 << 16
_TEXTS_AT_ONCE = 512


class SharedKeys:
    """Units (compared parts of rows) that share a key with another unit, by row; other units are dropped.

    While keys are gathered, they are in one file for each band; then they are read band by band. Memory holds
    8 bytes for each unit, 24 while a band is sorted, and 16 for each key that units share.
    """

    def __init__(
        self, keys: Iterable[tuple[list[int], NDArray[np.uint64]]], bands: int, folder: Path
    ) -> None:
        """Write blocks of (row of each unit, keys [bands, units]) to files, with rows in ascending order."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"band-{band}.keys" for band in range(bands)]
        rows = array("q")
        with ExitStack() as stack:
            band_files = [stack.enter_context(file.open("wb")) for file in files]
            for block, block_keys in keys:
                rows.extend(block)
                for band, file in enumerate(band_files):
                    file.write(block_keys[band].tobytes())
        self.rows = np.frombuffer(rows, np.int64) if rows else np.zeros(0, np.int64)
        self._units, self._buckets = _group_by_key(files)

    def __iter__(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield rows in order, each with the (unit, bucket) of each shared key."""
        return (
            (row, [(unit, bucket) for _, unit, bucket in group])
            for row, group in groupby(self._yield_entries(), key=itemgetter(0))
        )

    def _yield_entries(self) -> Iterator[tuple[int, int, int]]:
        for start in range(0, len(self._units), _ENTRIES_AT_ONCE):
            units = self._units[start : start + _ENTRIES_AT_ONCE]
            buckets = self._buckets[start : start + _ENTRIES_AT_ONCE]
            yield from zip(self.rows[units].tolist(), units.tolist(), buckets.tolist(), strict=True)


def _group_by_key(files: Iterable[Path]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the units that share a key, with the key's bucket, in the order of units; remove the files."""
    units: list[NDArray[np.int64]] = []
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
        units.append(order[has_partner])
        buckets.append(np.cumsum(starts_group)[has_partner] + count)
        count += int(starts_group.sum())
    shared_units = np.concatenate([np.zeros(0, np.int64), *units])
    order = np.argsort(shared_units, kind="stable")
    return shared_units[order], np.concatenate([np.zeros(0, np.int64), *buckets])[order]


def first_copies(
    shared: Iterable[tuple[int, list[tuple[int, int]]]], same: Callable[[int, int], bool]
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row that it is a copy of); the earlier row is never a copy itself.

    `same` compares two units that share a key. Each row is compared only with earlier rows that are kept, so
    a thousand copies of a text cost a thousand comparisons and not a million.
    """
    stay: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (row, unit) by bucket
    for row, entries in shared:
        candidates = dict.fromkeys(
            (unit, *other) for unit, bucket in entries for other in stay.get(bucket, ())
        )
        earlier_rows = (
            other
            for unit, other, other_unit in candidates
            if other != row and same(unit, other_unit)
        )
        earlier = next(earlier_rows, None)
        if earlier is not None:
            yield row, earlier
            continue
        for unit, bucket in entries:
            stay[bucket].append((row, unit))


def equal_copies(
    rows: RowsInOrder, is_kept: NDArray[np.bool_], folder: Path
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) for each row that equals an earlier row."""

    def keys() -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        for row_numbers, units in _split_blocks(rows.every_unit(is_kept)):
            hashes = [_hash("\x1f".join((unit.tag, *unit.parts))) for unit in units]
            yield row_numbers, np.array([hashes], dtype=np.uint64)

    shared_keys = SharedKeys(keys(), 1, folder)
    unit = _UnitAt(rows, shared_keys)
    yield from first_copies(shared_keys, lambda one, other: unit(one) == unit(other))


def near_copies(
    rows: RowsInOrder,
    is_kept: NDArray[np.bool_],
    folder: Path,
    *,
    threshold: float,
    size: int,
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) of rows whose parts all reach the threshold of similarity.

    Candidates share a key of MinHash; their Jaccard similarity is then computed from the shingles, so no pair
    below the threshold is found. Keys come from the signature of all parts' shingles together: if each part
    reaches the threshold, so do the shingles of all parts together.
    """
    minhash = MinHash(threshold, size)

    def keys() -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        for row_numbers, units in _split_blocks(rows.every_unit(is_kept)):
            signatures = minhash.signatures([unit.parts[0] for unit in units])
            more = [number for number, unit in enumerate(units) if len(unit.parts) > 1]
            if more:
                others = minhash.signatures([units[number].parts[1] for number in more], part=1)
                signatures[more] = np.minimum(signatures[more], others)
            tags = np.array([_hash(unit.tag) for unit in units], dtype=np.uint64)
            yield row_numbers, mix_bits(minhash.keys(signatures) + tags)

    shared_keys = SharedKeys(keys(), minhash.bands, folder)
    unit = _UnitAt(rows, shared_keys)

    @functools.lru_cache(maxsize=4096)
    def sets(number: int) -> tuple[str, list[frozenset[str]]]:
        texts = unit(number)
        return texts.tag, [shingles(part, size) for part in texts.parts]

    def same(unit_number: int, other: int) -> bool:
        (tag, part_sets), (other_tag, other_part_sets) = sets(unit_number), sets(other)
        alike = tag == other_tag and len(part_sets) == len(other_part_sets)
        return alike and all(
            map(lambda a, b: jaccard(a, b) >= threshold, part_sets, other_part_sets)
        )

    yield from first_copies(shared_keys, same)


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
    for number, entries in SharedKeys(keys(), minhash.bands, folder):
        for _, bucket in entries:
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


class _UnitAt:
    """Function that returns the unit with a number, read from its row."""

    def __init__(self, rows: RowsInOrder, shared: SharedKeys) -> None:
        self._rows = rows
        self._row_of = shared.rows

    def __call__(self, number: int) -> ComparedTexts:
        return self._rows.unit(int(self._row_of[number]))


def _split_blocks(
    units: Iterable[tuple[int, ComparedTexts]],
) -> Iterator[tuple[list[int], list[ComparedTexts]]]:
    """Yield the row numbers and the units of one block after another."""
    iterator = iter(units)
    while block := list(islice(iterator, _TEXTS_AT_ONCE)):
        yield [row for row, _ in block], [unit for _, unit in block]


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
