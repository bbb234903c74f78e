"""Samplers: choose examples, group them into batches. They know no rank and no device, only a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from emberge.contracts.dataset import DatasetInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Batch", "Negatives", "Part", "Pool", "Rows", "Sampler"]

Negatives = Literal["auto", "in_batch", "hard_only"]
# A lazy sequence of row numbers: a range, an array, or a list.
Rows: TypeAlias = "Sequence[int] | NDArray[np.int64]"
Pool: TypeAlias = "Mapping[DatasetInfo, Rows]"


class Part(NamedTuple):
    """Rows of one dataset inside a batch."""

    dataset: str
    rows: Rows


class Batch(NamedTuple):
    """One optimizer step's examples over all ranks; task-pure samplers give one part."""

    parts: tuple[Part, ...]
    stage: int = 0
    negatives: Negatives = "auto"


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Choose examples (`select`) or group them (`batches`). A chain selects in turn; its last link groups."""

    def select(self, pool: Pool, seed: int) -> Pool:
        """The rows to train on; `seed` is the run's, so a bag stays the same in every epoch."""
        return pool

    def batches(self, pool: Pool, seed: int) -> Iterator[Batch]:
        """One epoch's global batches; `seed` is the epoch's.

        Raises:
            NotImplementedError: for a sampler that only selects, which cannot stand last.
        """
        raise NotImplementedError(
            f"{type(self).__name__} only selects; end the chain with a grouping one"
        )
