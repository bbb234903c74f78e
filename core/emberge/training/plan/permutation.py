"""Random orders of any length; any part is computed without the others."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from emberge.seeds import random_bits, shuffled, stable_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Orders up to this length are sorted random words, every one as likely; a number of theirs takes two bytes.
TABLE_SIZE = 1 << 16
TABLES_KEPT = 256
ROUNDS = 8


class Permutation:
    """Random order of 0 … size - 1, a pure function of size and seed, in memory that does not grow.

    Short ones are tables, the very order that `shuffled` gives. Longer ones are a Feistel network, which
    permutes by arithmetic on each place: 10⁹ rows cost as little as a thousand to begin, and place k is
    known without those before it.
    """

    __slots__ = ("_seed", "size")

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._seed = size, seed

    def __len__(self) -> int:
        return self.size

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at `places`, each from 0 to size - 1."""
        if self.size <= TABLE_SIZE:
            return _table(self.size, self._seed)[places].astype("int64")
        return _network(self.size, self._seed).take(places)

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers at places `start` to `stop` - 1."""
        import numpy as np

        return self.take(np.arange(start, min(stop, self.size), dtype=np.int64))

    def __getitem__(self, place: int) -> int:
        import numpy as np

        if not 0 <= place < self.size:
            raise IndexError(f"place {place} of {self.size}")
        return int(self.take(np.array([place], dtype=np.int64))[0])


@functools.lru_cache(maxsize=TABLES_KEPT)
def _table(size: int, seed: int) -> NDArray[np.uint16]:
    return shuffled(size, seed).astype("uint16")


@functools.lru_cache(maxsize=TABLES_KEPT)
def _network(size: int, seed: int) -> Network:
    return Network(size, seed)


class Network:
    """Keyed permutation by a generalised Feistel network with cycle walking (Black & Rogaway, 2002).

    A place is split into (left, right) on a grid hardly larger than `size`; in each of `rounds` rounds one
    half is shifted, modulo its range, by a keyed hash of the other, which can be undone and so never
    makes two places one. What falls on a grid point beyond the end goes through again until it does not.
    The left range is even: odd cycles alone would reach half of all orders only. Eight rounds do for orders
    too long for a table; on a grid of a few points all orders are as likely only after sixteen.
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

        found = self._pass(np.asarray(places).astype(np.uint64))
        while (beyond := found >= np.uint64(self.size)).any():
            found[beyond] = self._pass(found[beyond])
        return found.astype(np.int64)

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

    word = mixed(other ^ key)
    # The high half of the word, scaled to the span: quicker than a remainder and as even.
    step = ((word >> np.uint64(32)) * np.uint64(span)) >> np.uint64(32)
    moved = half + step
    return np.asarray(np.where(moved >= np.uint64(span), moved - np.uint64(span), moved))


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit words whose every bit depends on every bit (SplitMix64's finaliser, Steele 2014)."""
    import numpy as np

    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
