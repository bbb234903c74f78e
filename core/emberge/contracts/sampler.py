"""Samplers, which choose examples and group them into batches by a seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from emberge.contracts.dataset import DatasetInfo, Negatives, Rows

if TYPE_CHECKING:
    from emberge.contracts.reference import FileRef


# Treatment of rows that do not fill a last batch.
Tail = Literal["drop", "wrap", "keep"]
Pool: TypeAlias = "Mapping[DatasetInfo, Rows]"


class BatchPart(NamedTuple):
    """Rows of one dataset inside a batch."""

    dataset: str
    rows: Rows


class Batch(NamedTuple):
    """Examples of one optimizer step over all ranks; most samplers give rows of one dataset."""

    parts: tuple[BatchPart, ...]
    stage: int = 0
    negatives: Negatives = "auto"


class Batches:
    """The batches of one epoch, each computed on demand, so that an epoch can have any length.

    Batch k depends on k alone: a training reads batches in any order and keeps none in memory.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, number: int) -> Batch:
        """Return batch `number`, counted from 0, with at least one row."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        return (self[number] for number in range(len(self)))

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        """Return the pairs (dataset, rule for negatives) that occur, by default by reading all batches."""
        return frozenset((part.dataset, batch.negatives) for batch in self for part in batch.parts)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A sampler, which selects examples (`select`) or, as the last of a chain, groups them (`batches`).

    Training steps use the `resolved` samplers, so a sampler may read results of earlier steps.
    """

    def check_data(self, infos: Sequence[DatasetInfo]) -> Iterable[str]:
        """Return reasons why the sampler cannot group these datasets, from their names and tasks alone."""
        return ()

    def resolved(self, locate: Callable[[FileRef], Path]) -> Sampler:
        """Return the sampler with the files named in its options read; by default itself.

        The files' content is stored as plain values, by which a resumed training recognises the sampler.

        Raises:
            EmbergeError: if a file lacks the content that the options ask for.
        """
        return self

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the rows to train on; `seed` is the run's, so the selection is equal in every epoch."""
        return pool

    def batches(self, pool: Pool, seed: int) -> Iterable[Batch]:
        """Return one epoch's global batches; `seed` is the epoch's.

        The method may be a generator, which is read into memory once per epoch. For large data return
        `Batches`, which compute each batch on demand.

        Raises:
            NotImplementedError: if the sampler only selects, so it cannot be the last of a chain.
        """
        raise NotImplementedError(
            f"{type(self).__name__} only selects; end the chain with a grouping one"
        )
