"""Datasets in proportion to their sizes and weights, or with shares that a step found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge import (
    DataError,
    EmbergeError,
    FileRef,
    PerDataset,
    Pool,
    Preflight,
    Problem,
    Sampler,
    suggest,
)
from emberge.training import DatasetBatches, FoundMixture

from emberge_train.samplers.one_dataset import Shares


@dataclass(frozen=True, kw_only=True)
class Proportional(Shares):
    """Shares of the batches in proportion to each dataset's rows times its weight.

    Examples-proportional mixing (Raffel et al., 2020, arXiv:1910.10683, section 3.5.2): the share of a
    dataset of n rows is w · min(n, K) over the sum of this product for all datasets, with K the `size_limit`
    and w the dataset's weight. With neither option it is nearly `batch_shuffle`, but `batch_shuffle` takes
    each row exactly once an epoch, while this sampler keeps the shares.

    With `shares: $mixture` the shares are those that a step `find_mixture` found, in place of sizes and
    weights; datasets with a share of 0 are left out.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {proportional: {size_limit: 10000}}
    """

    shares: FileRef | None = None
    """Step `find_mixture`, or the folder of a finished one, whose shares are used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares is None:
            return
        for name in ("weight", "size_limit"):
            stated = getattr(self, name)
            if stated not in (None, PerDataset(default=1.0)):
                raise ValueError(f"shares takes the place of {name}; give one of them")

    def check(self, context: Preflight) -> Iterable[Problem]:
        """Note the shares that exist already, and yield a problem if their file cannot be used."""
        if self.shares is None:
            return
        is_made_here = self.shares.step is not None
        folder = context.earlier_result(self.shares) if is_made_here else context.data(self.shares)
        if folder is None:
            if is_made_here:
                context.note(f"shares of {self.shares}", [f"known when {self.shares} is done"])
            return
        try:
            found = FoundMixture.read(folder)
        except EmbergeError as error:
            report = context.warning if is_made_here else context.problem
            yield report(str(error), "sampler")
            return
        lines = [f"{name}: {share:.3g}" for name, share in found.shares.items()]
        context.note(f"shares of {self.shares}", lines)

    def resolved(self, locate: Callable[[FileRef], Path]) -> Sampler:
        if self.shares is None:
            return self
        found = FoundMixture.read(locate(self.shares))
        options = {
            option.name: getattr(self, option.name)
            for option in dataclasses.fields(Shares)
            if option.name not in ("weight", "size_limit")
        }
        groups = tuple((share, tuple(found.datasets[name])) for name, share in found.shares.items())
        return FoundShares(**options, groups=groups)

    def select(self, pool: Pool, seed: int) -> Pool:
        if self.shares is not None:
            raise EmbergeError(
                f"the shares {self.shares} were not read before datasets were chosen by them; ask for the "
                "resolved sampler"
            )
        return super().select(pool, seed)


@dataclass(frozen=True, kw_only=True)
class FoundShares(Shares):
    """Sampler with a share for each group of datasets, which its datasets divide by their rows."""

    groups: tuple[tuple[float, tuple[str, ...]], ...]

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the pool without the datasets whose share is 0.

        Raises:
            DataError: if the datasets of the training differ from those that have shares.
        """
        names = [info.name for info in pool]
        shared_names = [name for _, members in self.groups for name in members]
        for name in names:
            if name not in shared_names:
                raise DataError(
                    f"dataset '{name}' of this training has no share; there are shares for "
                    f"{', '.join(shared_names)}: leave it out, or find the mixture with it"
                )
        for share, members in self.groups:
            for name in members:
                if share > 0 and name not in names:
                    hint = suggest(name, names) or f"; there are {', '.join(names)}"
                    raise DataError(
                        f"'{name}' has a share of {share:.3g}, and is no dataset of this training{hint}"
                    )
        left_out = {name for share, members in self.groups for name in members if share == 0}
        return {info: rows for info, rows in pool.items() if info.name not in left_out}

    def compute_shares(self, datasets: Sequence[DatasetBatches]) -> list[float]:
        size_by_name = {dataset.info.name: len(dataset.rows) for dataset in datasets}
        parts = dict.fromkeys(size_by_name, 0.0)
        for share, members in self.groups:
            known = [name for name in members if name in size_by_name]
            total = sum(size_by_name[name] for name in known)
            for name in known:
                parts[name] += share * size_by_name[name] / total
        whole = sum(parts.values())
        return [parts[dataset.info.name] / whole for dataset in datasets]
