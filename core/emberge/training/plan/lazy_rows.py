"""Row numbers, computed when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from emberge.contracts import Rows
from emberge.seeds import stable_seed
from emberge.training.plan.permutation import Permutation, mixed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PIECE = 1 << 20


def take_rows(rows: Rows, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row numbers at `places`, without making an array of all of them."""
    import numpy as np

    if isinstance(rows, range):
        return np.asarray(rows.start + rows.step * places, dtype=np.int64)
    if isinstance(rows, np.ndarray | LazyRows):
        return np.asarray(rows.take(places), dtype=np.int64)
    return np.asarray([rows[int(place)] for place in places], dtype=np.int64)


def in_pieces(rows: Rows, size: int = PIECE) -> Iterator[NDArray[np.int64]]:
    """Yield all row numbers in order, in arrays of up to `size`."""
    import numpy as np

    for start in range(0, len(rows), size):
        yield take_rows(rows, np.arange(start, min(start + size, len(rows)), dtype=np.int64))


def same_rows(one: Rows, other: Rows) -> bool:
    """Return whether both are the same numbers in the same order."""
    if one is other or (isinstance(one, range) and isinstance(other, range)):
        return bool(one == other)
    if len(one) != len(other):
        return False
    return all((a == b).all() for a, b in zip(in_pieces(one), in_pieces(other), strict=True))


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

        which = range(len(self))[place]
        if isinstance(which, int):
            return int(self.take(np.array([which], dtype=np.int64))[0])
        return [int(row) for row in self.take(np.asarray(which, dtype=np.int64))]

    def __iter__(self) -> Iterator[int]:
        for piece in in_pieces(self):
            yield from piece.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        import numpy as np

        pieces = [*in_pieces(self)] or [np.zeros(0, np.int64)]
        return np.concatenate(pieces).astype(dtype or np.int64, copy=False)


class RowSubset(LazyRows):
    """Rows of another sequence without replacement: those that a random order has from `start` to `stop`."""

    def __init__(self, rows: Rows, seed: int, start: int, stop: int) -> None:
        self._rows, self._start, self._stop = rows, start, stop
        self._order = Permutation(len(rows), seed)

    def __len__(self) -> int:
        return self._stop - self._start

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return take_rows(self._rows, self.places(places))

    def places(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places in the other sequence of the rows at `places`."""
        return self._order.take(places + self._start)


class RowsWithReplacement(LazyRows):
    """Rows of another sequence with replacement, each drawn by a hash of seed and place."""

    def __init__(self, rows: Rows, seed: int, count: int) -> None:
        self._rows, self._count = rows, count
        self._key = stable_seed(seed, "drawn")

    def __len__(self) -> int:
        return self._count

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        words = mixed(mixed(places.astype(np.uint64)) ^ np.uint64(self._key))
        return take_rows(self._rows, (words % np.uint64(len(self._rows))).astype(np.int64))
