"""Row numbers that are computed when they are read: random orders and subsets."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from emberge.contracts import Rows
from emberge.seeds import random_bits, shuffled, stable_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Largest size of a permutation that is a table (sorted random words, all orders equally likely).
# Its numbers take two bytes each.
TABLE_SIZE = 1 << 16
TABLES_KEPT = 256
ROUNDS = 8


class Permutation:
    """Random order of 0 … size - 1, a pure function of size and seed, in constant memory.

    Short permutations are tables, with the order that `shuffled` returns. Long permutations are a Feistel
    network, which computes each position by arithmetic: 10⁹ rows need no more preparation than a thousand,
    and position k is computed without the positions before it.
    """

    __slots__ = ("_seed", "size")

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._seed = size, seed

    def __len__(self) -> int:
        return self.size

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at the positions `places`, each from 0 to size - 1."""
        if self.size <= TABLE_SIZE:
            return _build_table(self.size, self._seed)[places].astype("int64")
        return _build_network(self.size, self._seed).take(places)

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers at the positions `start` to `stop` - 1."""
        import numpy as np

        return self.take(np.arange(start, min(stop, self.size), dtype=np.int64))

    def __getitem__(self, place: int) -> int:
        import numpy as np

        if not 0 <= place < self.size:
            raise IndexError(f"place {place} of {self.size}")
        return int(self.take(np.array([place], dtype=np.int64))[0])


@functools.lru_cache(maxsize=TABLES_KEPT)
def _build_table(size: int, seed: int) -> NDArray[np.uint16]:
    return shuffled(size, seed).astype("uint16")


@functools.lru_cache(maxsize=TABLES_KEPT)
def _build_network(size: int, seed: int) -> Network:
    return Network(size, seed)


class Network:
    """Keyed permutation by a generalised Feistel network with cycle walking (Black & Rogaway, 2002).

    A position is split into (left, right) on a grid hardly larger than `size`. In each of `rounds` rounds,
    one half is shifted, modulo its range, by a keyed hash of the other half. A round can be undone, so it
    never maps two positions to one. A result on a grid point beyond the end is permuted again until it is
    below `size`. The left range is even, as odd cycles alone would reach only half of all orders. Eight
    rounds suffice for orders too long for a table; on a grid of a few points, all orders are equally likely
    only after sixteen.
    """

    __slots__ = ("_keys", "_left", "_right", "size")

    def __init__(self, size: int, seed: int, rounds: int = ROUNDS) -> None:
        self.size = size
        left = max(2, math.isqrt(max(size - 1, 0)) + 1)
        self._left = left + left % 2
        self._right = -(-size // self._left)
        self._keys = random_bits(rounds, stable_seed(seed, "network"))

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at `places`."""
        import numpy as np

        values = self._pass(np.asarray(places).astype(np.uint64))
        while (beyond := values >= np.uint64(self.size)).any():
            values[beyond] = self._pass(values[beyond])
        return values.astype(np.int64)

    def _pass(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        import numpy as np

        left, right = np.divmod(places, np.uint64(self._right))
        for number in range(0, len(self._keys), 2):
            left = _shift(left, right, self._left, self._keys[number])
            right = _shift(right, left, self._right, self._keys[number + 1])
        return left * np.uint64(self._right) + right


def _shift(
    half: NDArray[np.uint64], other: NDArray[np.uint64], span: int, key: np.uint64
) -> NDArray[np.uint64]:
    """Return `half` plus a keyed hash of `other`, modulo `span` (below 2³²)."""
    import numpy as np

    word = mix_bits(other ^ key)
    # The high half of the word, scaled to the span, is faster than a remainder and equally even.
    step = ((word >> np.uint64(32)) * np.uint64(span)) >> np.uint64(32)
    shifted = half + step
    return np.asarray(np.where(shifted >= np.uint64(span), shifted - np.uint64(span), shifted))


def mix_bits(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit words whose every bit depends on every bit (SplitMix64's finaliser, Steele 2014)."""
    import numpy as np

    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


PIECE_ROWS = 1 << 20


def take_rows(rows: Rows, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row numbers at the positions `places`, without making an array of all rows."""
    import numpy as np

    if isinstance(rows, range):
        return np.asarray(rows.start + rows.step * places, dtype=np.int64)
    if isinstance(rows, np.ndarray | LazyRows):
        return np.asarray(rows.take(places), dtype=np.int64)
    return np.asarray([rows[int(place)] for place in places], dtype=np.int64)


def in_pieces(rows: Rows, size: int = PIECE_ROWS) -> Iterator[NDArray[np.int64]]:
    """Yield all row numbers in order, in arrays of up to `size`."""
    import numpy as np

    for start in range(0, len(rows), size):
        yield take_rows(rows, np.arange(start, min(start + size, len(rows)), dtype=np.int64))


class LazyRows(Sequence[int]):
    """Sequence of row numbers, computed when they are read."""

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row numbers at `places`."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        import numpy as np

        positions = range(len(self))[place]
        if isinstance(positions, int):
            return int(self.take(np.array([positions], dtype=np.int64))[0])
        return [int(row) for row in self.take(np.asarray(positions, dtype=np.int64))]

    def __iter__(self) -> Iterator[int]:
        for piece in in_pieces(self):
            yield from piece.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        import numpy as np

        pieces = [*in_pieces(self)] or [np.zeros(0, np.int64)]
        return np.concatenate(pieces).astype(dtype or np.int64, copy=False)


class RowSubset(LazyRows):
    """Rows of another sequence without replacement: positions `start` to `stop` - 1 of a random order."""

    def __init__(self, rows: Rows, seed: int, start: int, stop: int) -> None:
        self._rows, self._start, self._stop = rows, start, stop
        self._order = Permutation(len(rows), seed)

    def __len__(self) -> int:
        return self._stop - self._start

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return take_rows(self._rows, self.places(places))

    def places(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the other sequence of the rows at `places`."""
        return self._order.take(places + self._start)
