"""Samplers: choose examples, group them into batches. They know no rank and no device, only a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from emberge.contracts.dataset import DatasetInfo, Rows

if TYPE_CHECKING:
    from emberge.contracts.reference import FileRef
    from emberge.contracts.step import Preflight
    from emberge.errors import Problem

__all__ = ["Batch", "BatchPart", "Batches", "Negatives", "Pool", "Sampler", "Tail"]

Negatives = Literal["auto", "in_batch", "hard_only"]
# What becomes of rows that do not fill a last batch.
Tail = Literal["drop", "wrap", "keep"]
Pool: TypeAlias = "Mapping[DatasetInfo, Rows]"


class BatchPart(NamedTuple):
    """Rows of one dataset inside a batch."""

    dataset: str
    rows: Rows


class Batch(NamedTuple):
    """One optimizer step's examples over all ranks; task-pure samplers give one part."""

    parts: tuple[BatchPart, ...]
    stage: int = 0
    negatives: Negatives = "auto"


class Batches:
    """One epoch's batches, each computed when it is asked for, so that an epoch may be of any length.

    Batch k is a pure function of k: the plan of a training reads batches in any order and keeps none.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, place: int) -> Batch:
        """Return batch `place`, counted from 0, with at least one row."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        return (self[place] for place in range(len(self)))

    def segments(self) -> Sequence[int]:
        """Return the first batch of each stretch, where one comes after another; default: all are one."""
        return (0,)

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        """Return the pairs of datasets and negatives that occur; by default all batches are read for it."""
        return frozenset((part.dataset, each.negatives) for each in self for part in each.parts)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A sampler, which chooses examples (`select`) or groups them (`batches`); the last of a chain groups.

    A step that trains asks for the `resolved` samplers, so that one may read what earlier steps made.
    """

    def files(self) -> list[FileRef]:
        """Return the files that its options name."""
        from emberge.contracts.reference import FileRef

        values = [getattr(self, option.name) for option in fields(self)]
        return [value for value in values if isinstance(value, FileRef)]

    def check(self, context: Preflight) -> Iterable[Problem]:
        """Return problems that show before a run in what the sampler reads beside the data."""
        return ()

    def check_data(self, infos: Sequence[DatasetInfo]) -> Iterable[str]:
        """Return reasons why it cannot group these datasets, from their names and kinds of task alone."""
        return ()

    def resolved(self, locate: Callable[[FileRef], Path]) -> Sampler:
        """Return the sampler to use once the files that its options name exist; default: itself.

        It keeps what it read as plain values, by which a resumed training recognises it.

        Raises:
            EmbergeError: for a file that does not give what the options ask for.
        """
        return self

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the rows to train on; `seed` is the run's, so a bag stays the same in every epoch."""
        return pool

    def batches(self, pool: Pool, seed: int) -> Iterable[Batch]:
        """Return one epoch's global batches; `seed` is the epoch's.

        A generator will do, and is read into memory once an epoch. `Batches` are computed one by one:
        return such (`DatasetBatches`, `Shuffled`, `InOrder`, `Interleaved`) where data may be large.

        Raises:
            NotImplementedError: for a sampler that only selects, which cannot be the last.
        """
        raise NotImplementedError(
            f"{type(self).__name__} only selects; end the chain with a grouping one"
        )
