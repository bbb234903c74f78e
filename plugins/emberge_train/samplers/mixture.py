"""Mixtures of single texts by their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain

from emberge import (
    Batch,
    Batches,
    Count,
    DataError,
    DatasetInfo,
    Negatives,
    PerDataset,
    Pool,
    PositiveShare,
    Sampler,
    suggest,
)

from emberge_train.samplers.batches import DatasetBatches
from emberge_train.samplers.one_dataset_samplers import OneDataset

# Shares that people round to a few digits still make a whole.
ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Mixture(Sampler):
    """Batches of single texts in which every dataset has its share of the tokens.

    `shares` are by dataset. Datasets that are not named divide the remaining share equally: with `{english:
    0.8}` and four other sets, each of the four gets 0.05 (the mix that BidirLM adapts models on,
    arXiv:2604.02045). A name with `*` is a group. Its share of a batch comes from one of its sets, which take
    turns from batch to batch, so that many sets need no large batches.

    A batch has about `batch_tokens` tokens over all ranks. In each batch, and in any number of batches of one
    pass over a set, a set's tokens differ from its share by less than its longest window. An epoch ends when
    each set was read once, except for a remainder that is smaller than the set's part of a batch. Until then
    smaller sets are repeated, in another order. A training reads `max_steps` times `batch_tokens` tokens, and
    each set gives its share of them; a set on a hub needs no more rows (`first`) than contain that share.

    Example:
        data: [{path: ./english.jsonl}, {path: ./code.jsonl}, {path: ./mathematics.jsonl}]
        loss: mlm
        sampler: {mixture: {shares: {english: 0.8}, batch_tokens: 8192}}
    """

    shares: Mapping[str, PositiveShare] = field(default_factory=dict)
    """Share of the tokens by dataset, or by group: `{english: 0.8, code_*: 0.1}`."""
    batch_tokens: Count = 8192
    """Tokens of a batch over all ranks."""

    def __post_init__(self) -> None:
        if sum(self.shares.values()) > 1 + ROUNDING:
            raise ValueError(f"shares add up to {sum(self.shares.values()):g}, which is above 1")

    def check_data(self, infos: Sequence[DatasetInfo]) -> Iterable[str]:
        try:
            self._compute_shares(infos)
        except DataError as error:
            yield str(error)

    def batches(self, pool: Pool, seed: int) -> Batches:
        """Return batches with a part of every dataset.

        Raises:
            DataError: if shares do not fit the datasets, a dataset has pairs, or a share of a batch is
                smaller than a dataset's longest window or larger than the dataset.
        """
        shares = self._compute_shares(list(pool))
        groups = self._group_names([info.name for info in pool])
        tokens = {
            name: round(shares[group] * self.batch_tokens)
            for group, names in groups.items()
            for name in names
        }
        for info in pool:
            if info.tokens is not None and info.tokens.sum() < tokens[info.name]:
                raise DataError(
                    f"dataset '{info.name}' has {info.tokens.sum()} tokens, and its share of one batch is "
                    f"{tokens[info.name]}; lower batch_tokens or its share, or give it more texts"
                )
        limits = PerDataset(by_dataset={name: max(1, count) for name, count in tokens.items()})
        sampler = OneDataset(batch_size=PerDataset(), batch_tokens=limits)
        parts = sampler.cut_dataset_batches(pool, seed)
        turns = [[part for part in parts if part.info.name in names] for names in groups.values()]
        length = max(len(part) * len(turn) for turn in turns for part in turn)
        return _MixtureBatches(
            [[part.with_count(-(-length // len(turn))) for part in turn] for turn in turns], length
        )

    def _compute_shares(self, infos: Sequence[DatasetInfo]) -> dict[str, float]:
        """Return the share of each dataset or group, by its name in `shares` or else the dataset's own name.

        Raises:
            DataError: if a name is no dataset, datasets have pairs, or the shares do not sum to 1.
        """
        names = [info.name for info in infos]
        groups = self._group_names(names)
        for name in self.shares:
            if name not in groups:
                hint = suggest(name, names) or f"; there are {', '.join(names)}"
                raise DataError(f"shares names '{name}', which is no dataset here{hint}")
        for info in infos:
            if info.task != "text":
                raise DataError(
                    f"mixture counts tokens of single texts, and dataset '{info.name}' is of the task "
                    f"{info.task}; leave it out, or take a sampler such as proportional"
                )
        remaining_share = 1 - sum(self.shares.values())
        unnamed_groups = [name for name in groups if name not in self.shares]
        if bool(unnamed_groups) != (remaining_share > ROUNDING):
            fix = "lower them, or drop what has none" if unnamed_groups else "name all of it"
            missing_note = f", and {', '.join(unnamed_groups)} have none" if unnamed_groups else ""
            raise DataError(f"shares add up to {1 - remaining_share:g}{missing_note}; {fix}")
        return {
            name: self.shares.get(name, remaining_share / max(1, len(unnamed_groups)))
            for name in groups
        }

    def _group_names(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the datasets of each share, in the order of the data; an unnamed set forms its own group.

        Raises:
            DataError: for a dataset that belongs to two groups.
        """
        groups: dict[str, list[str]] = {}
        for name in names:
            matching_groups = [
                group for group in self.shares if "*" in group and fnmatchcase(name, group)
            ]
            if name in self.shares:
                matching_groups = [name]
            if len(matching_groups) > 1:
                raise DataError(
                    f"dataset '{name}' is of {' and '.join(matching_groups)}; name it in one share"
                )
            groups.setdefault(matching_groups[0] if matching_groups else name, []).append(name)
        return groups


class _MixtureBatches(Batches):
    """Batches that each join one batch of every group; the sequences of a group take turns."""

    def __init__(self, turns: Sequence[Sequence[DatasetBatches]], length: int) -> None:
        self._turns = turns
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Batch:
        batches = (turn[number % len(turn)][number // len(turn)] for turn in self._turns)
        return Batch(tuple(part for batch in batches for part in batch.parts))

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        return frozenset[tuple[str, Negatives]]().union(
            *(sequence.kinds() for sequence in chain.from_iterable(self._turns))
        )
