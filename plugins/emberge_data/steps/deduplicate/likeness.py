"""Ways in which two rows are copies: equal once normalised, or near by the Jaccard similarity of shingles."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

from emberge_data.steps.deduplicate.shared_keys import SharedKeys, first_copies
from emberge_data.steps.near.minhash import MinHash
from emberge_data.steps.near.shingles import jaccard, mixed, shingles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from emberge_data.steps.deduplicate.units import ComparedTexts, RowsInOrder


_AT_ONCE = 512


def equal_copies(
    rows: RowsInOrder, kept: NDArray[np.bool_], folder: Path
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) of rows that equal an earlier one."""

    def keys() -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        for numbers, units in _blocks(rows.every_unit(kept)):
            hashes = [_hash("\x1f".join((unit.tag, *unit.parts))) for unit in units]
            yield numbers, np.array([hashes], dtype=np.uint64)

    shared = SharedKeys(keys(), 1, folder)
    unit = _UnitAt(rows, shared)
    yield from first_copies(shared, lambda one, other: unit(one) == unit(other))


def near_copies(
    rows: RowsInOrder,
    kept: NDArray[np.bool_],
    folder: Path,
    *,
    threshold: float,
    size: int,
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) of rows each part of which is as alike as the threshold, or more.

    Candidates share a key of MinHash; their Jaccard similarity is then computed from the shingles, so no
    pair below the threshold is found. If all parts are as alike as the threshold, so are their shingles put
    together, whose signature gives the keys.
    """
    minhash = MinHash(threshold, size)

    def keys() -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        for numbers, units in _blocks(rows.every_unit(kept)):
            signatures = minhash.signatures([unit.parts[0] for unit in units])
            more = [place for place, unit in enumerate(units) if len(unit.parts) > 1]
            if more:
                others = minhash.signatures([units[place].parts[1] for place in more], part=1)
                signatures[more] = np.minimum(signatures[more], others)
            tags = np.array([_hash(unit.tag) for unit in units], dtype=np.uint64)
            yield numbers, mixed(minhash.keys(signatures) + tags)

    shared = SharedKeys(keys(), minhash.bands, folder)
    unit = _UnitAt(rows, shared)

    @functools.lru_cache(maxsize=4096)
    def sets(place: int) -> tuple[str, list[frozenset[str]]]:
        found = unit(place)
        return found.tag, [shingles(part, size) for part in found.parts]

    def same(one: int, other: int) -> bool:
        (tag, mine), (other_tag, theirs) = sets(one), sets(other)
        alike = tag == other_tag and len(mine) == len(theirs)
        return alike and all(map(lambda a, b: jaccard(a, b) >= threshold, mine, theirs))

    yield from first_copies(shared, same)


class _UnitAt:
    """Access to the unit of a number, read from its row."""

    def __init__(self, rows: RowsInOrder, shared: SharedKeys) -> None:
        self._rows = rows
        self._row_of = shared.rows

    def __call__(self, number: int) -> ComparedTexts:
        row = int(self._row_of[number])
        first = int(np.searchsorted(self._row_of, row))
        return self._rows.units(row)[number - first]


def _blocks(
    units: Iterable[tuple[int, ComparedTexts]],
) -> Iterator[tuple[list[int], list[ComparedTexts]]]:
    """Yield the row numbers and the units of one block after another."""
    rest = iter(units)
    while block := list(islice(rest, _AT_ONCE)):
        yield [row for row, _ in block], [unit for _, unit in block]


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
