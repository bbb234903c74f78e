"""Bags: the share of every dataset that one member of an ensemble trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import DatasetInfo, Pool, Rows, Sampler, random_bits, shuffled, stable_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Bagging(Sampler):
    """Keep a random share of every dataset, drawn once for the whole training (BOOM, arXiv:2602.05787).

    `ratio` is a share from 0 to 1; each dataset keeps max(1, round(ratio · size)) rows, drawn without
    replacement, or with it if `replacement` (a full bag then holds about 63 % distinct rows). Members of one
    ratio differ by `draw`. `nested` bags of different ratios contain one another. `part: first` and
    `part: rest` split every dataset in two by its ratio, so that two members share no row and leave none out.
    It selects and does not group: end the chain with a sampler that does, such as `batch_shuffle`.
    """

    ratio: float = 1.0
    draw: int = 0
    replacement: bool = False
    nested: bool = False
    part: Literal["first", "rest"] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(
                f"ratio is a share above 0 and up to 1, not {self.ratio:g}"
                + (f"; did you mean {self.ratio / 100:g}?" if 1 < self.ratio <= 100 else "")
            )
        if self.replacement and (self.nested or self.part):
            raise ValueError("replacement goes with neither nested nor part")

    def select(self, pool: Pool, seed: int) -> Pool:
        """The bag. It depends on seed, ratio, draw and the dataset's name, on nothing else.

        Nested bags and parts leave the ratio out of the draw: they are cuts of one order.
        """
        return {info: self._bag(info, rows, seed) for info, rows in pool.items()}

    def _bag(self, info: DatasetInfo, rows: Rows, seed: int) -> NDArray[np.int64]:
        import numpy as np

        taken = np.asarray(rows, dtype=np.int64)
        size = len(taken)
        if not size:
            return taken
        one_order = self.nested or self.part is not None
        key: tuple[Any, ...] = (seed, "bag", self.draw, info.name)
        bag_seed = stable_seed(*key) if one_order else stable_seed(*key, float(self.ratio))
        if self.replacement:
            chosen = random_bits(_count(size, self.ratio), bag_seed) % np.uint64(size)
            return taken[np.sort(chosen.astype(np.int64))]
        order = shuffled(size, bag_seed)
        if self.part is None:
            return taken[np.sort(order[: _count(size, self.ratio)])]
        first = math.floor(round(size * self.ratio, 9))  # 0.29 · 100 is 28.999… in binary
        return taken[np.sort(order[:first] if self.part == "first" else order[first:])]


def _count(size: int, ratio: float) -> int:
    # Python rounds half to even.
    return max(1, round(ratio * size))
