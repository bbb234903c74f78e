"""Batches of one dataset, and of several sequences: shuffled, or one after another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emberge import Batch, Batches, DataError, DatasetInfo, Negatives, draw_order, make_seed
from emberge.contracts import BatchPart, Rows, Tail, take_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class DatasetBatches(Batches):
    """Batches of one dataset: its rows in a random order, cut into pieces of `size`.

    `tail` is the treatment of the rows that do not fill a last batch: `drop` leaves them out, `wrap` adds
    rows from the start of the order, `keep` makes a smaller batch. A batch never contains a row twice, so
    with `wrap`, a dataset smaller than a batch is a smaller batch. `count` is the number of batches: if it is
    less than one pass, the remaining rows are left out; if it is more, further passes have other orders; None
    means one pass.
    """

    info: DatasetInfo
    rows: Rows
    size: int
    seed: int
    tail: Tail = "drop"
    count: int | None = None
    stage: int = 0
    negatives: Negatives = "auto"

    @property
    def one_pass(self) -> int:
        """Number of batches of one pass, which contains each row once."""
        full_batches, left_over = divmod(len(self.rows), self.size)
        return full_batches + (1 if left_over and self.tail != "drop" else 0)

    def __len__(self) -> int:
        return self.one_pass if self.count is None else self.count

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        turn, number_in_turn = divmod(number, self.one_pass)
        seed = make_seed(self.seed, "turn", turn) if turn else self.seed
        rows = take_rows(self.rows, self._draw_positions(seed, number_in_turn))
        return Batch((BatchPart(self.info.name, rows),), self.stage, self.negatives)

    @functools.cached_property
    def _orders(self) -> dict[int, NDArray[np.int64]]:
        """Map the seed of the newest order to it."""
        return {}

    def _draw_order(self, seed: int) -> NDArray[np.int64]:
        """Return all positions in `rows` in the order of a seed."""
        if seed not in self._orders:
            self._orders.clear()
            self._orders[seed] = draw_order(len(self.rows), seed)
        return self._orders[seed]

    def _draw_positions(self, seed: int, number: int) -> NDArray[np.int64]:
        """Return the positions in `rows` of the rows of batch `number`, in the order of that seed."""
        import numpy as np

        order = self._draw_order(seed)
        start = number * self.size
        positions = order[start : start + self.size]
        missing_rows = self.size - len(positions)
        if missing_rows and self.tail == "wrap":
            return np.concatenate([positions, order[: min(missing_rows, start)]])
        return positions

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        return frozenset({(self.info.name, self.negatives)} if len(self) else ())

    def with_count(self, count: int) -> DatasetBatches:
        """Return the batches of the dataset with another `count`."""
        return replace(self, count=count)


@dataclass(frozen=True, eq=False)
class TokenBatches(DatasetBatches):
    """Batches of one dataset of single texts: rows in a random order, about `limit` tokens per batch.

    The position of a row's last token decides its batch, so batches differ from `limit` by less than one row,
    and none is empty. `size` is the mean number of rows.
    """

    limit: int = 0

    @property
    def one_pass(self) -> int:
        full_batches, left_over = divmod(int(self._lengths.sum()), self.limit)
        return full_batches + (1 if left_over and self.tail != "drop" else 0)

    @functools.cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """Tokens of each of the rows."""
        assert self.info.tokens is not None
        return self.info.tokens[take_rows(self.rows)]

    @functools.cached_property
    def _last_tokens(self) -> dict[int, NDArray[np.int64]]:
        """Map the seed of the newest order to the position of each row's last token."""
        return {}

    def _draw_positions(self, seed: int, number: int) -> NDArray[np.int64]:
        import numpy as np

        positions = self._draw_order(seed)
        if seed not in self._last_tokens:
            self._last_tokens.clear()
            self._last_tokens[seed] = np.cumsum(self._lengths[positions]) - 1
        last_tokens = self._last_tokens[seed]
        start, end = number * self.limit, (number + 1) * self.limit
        first_row, next_row = np.searchsorted(last_tokens, [start, end])
        batch_positions = positions[first_row:next_row]
        missing_tokens = end - int(self._lengths.sum())
        if missing_tokens > 0 and self.tail == "wrap":
            wrapped_rows = np.searchsorted(last_tokens, missing_tokens)
            return np.concatenate([batch_positions, positions[: min(wrapped_rows, first_row)]])
        return batch_positions


def build_token_batches(plain: DatasetBatches, limit: int) -> TokenBatches:
    """Return batches of about `limit` tokens.

    Raises:
        DataError: if the longest row does not fit into a batch, or the rows' tokens were not counted.
    """
    info, rows = plain.info, len(plain.rows)
    if info.tokens is None:
        raise DataError(
            f"dataset '{info.name}': its tokens are not counted before the model is there; a step that "
            "trains counts them"
        )
    longest = int(info.tokens.max(initial=0))
    if longest > limit:
        raise DataError(
            f"dataset '{info.name}': batch_tokens {limit} is less than its longest window of {longest}; "
            "raise it, or lower max_length"
        )
    fields = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
    token_batches = TokenBatches(**fields, limit=limit)
    return replace(token_batches, size=max(1, round(rows / max(1, token_batches.one_pass))))


class InOrder(Batches):
    """Batches of several parts, one part after another."""

    def __init__(self, parts: Sequence[Batches]) -> None:
        import numpy as np

        self.parts = tuple(part for part in parts if len(part))
        self._ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.parts else 0

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        part, number_in_part = self._find_batch(number)
        return self.parts[part][number_in_part]

    def _find_batch(self, index: int) -> tuple[int, int]:
        """Return the part that contains batch `index`, and the batch's number within the part."""
        part = int(self._ends.searchsorted(index, side="right"))
        return part, index - (int(self._ends[part - 1]) if part else 0)

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        return frozenset[tuple[str, Negatives]]().union(*(part.kinds() for part in self.parts))


class Shuffled(InOrder):
    """Batches of all parts in a random order."""

    def __init__(self, parts: Sequence[Batches], seed: int) -> None:
        super().__init__(parts)
        self._order = draw_order(len(self), seed)

    def _find_batch(self, index: int) -> tuple[int, int]:
        return super()._find_batch(int(self._order[index]))
