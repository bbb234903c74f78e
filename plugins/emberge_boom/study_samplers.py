"""The samplers that choose datasets by a study of interactions: a cluster, or a pair in conflict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emberge import Count, DataError, EmbergeError, FileRef, NonNegative, Pool, Sampler, suggest
from emberge.wording import count_noun

from emberge_boom.study import Study, list_cluster_lines, read_study

_PAIR_NUMBERS = {"first": (0,), "second": (1,), "both": (0, 1)}


@dataclass(frozen=True, kw_only=True)
class StudySampler(Sampler):
    """The datasets that are chosen by a study of interactions.

    `of` is a step `interactions`, or the folder of a finished one.
    """

    of: FileRef

    def choose_datasets(self, study: Study) -> NamedDatasets:
        """Return the sampler that keeps the chosen datasets.

        Raises:
            DataError: if the study does not have the cluster or pair that the options ask for.
        """
        raise NotImplementedError

    def resolved(self, locate: Callable[[FileRef], Path]) -> Sampler:
        return self.choose_datasets(read_study(locate(self.of)))

    def select(self, pool: Pool, seed: int) -> Pool:
        raise EmbergeError(f"the study {self.of} was not read; ask for the resolved sampler")


@dataclass(frozen=True, kw_only=True)
class NamedDatasets(Sampler):
    """Sampler of the datasets `names`, out of the study's `known` ones; `label` describes the choice."""

    names: tuple[str, ...]
    known: tuple[str, ...]
    label: str = ""

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the pool with only the chosen datasets.

        Raises:
            DataError: if the datasets of the training differ from those of the study.
        """
        names_in_pool = [info.name for info in pool]
        for name in self.names:
            if name not in names_in_pool:
                hint = suggest(name, names_in_pool) or f"; there are {', '.join(names_in_pool)}"
                raise DataError(
                    f"{self.label} has '{name}', which is no dataset of this training{hint}"
                )
        for name in names_in_pool:
            if name not in self.known:
                raise DataError(
                    f"dataset '{name}' of this training was not in the study, which knows "
                    f"{', '.join(self.known)}; leave it out, or study it too"
                )
        return {info: rows for info, rows in pool.items() if info.name in self.names}


@dataclass(frozen=True, kw_only=True)
class Cluster(StudySampler):
    """The datasets of one cluster, for cluster-level merging (BOOM, arXiv:2602.05787).

    `of` is a study of interactions (`$id` of a step `interactions`, or the folder of a finished one). The
    tree of the study is cut at the distance `threshold` (BOOM uses 0.15, 0.2 and 1.0), or into `clusters`
    clusters; exactly one of the two is given. The cluster with the most rows is number 1; the study's report
    lists all clusters. With a `threshold` the number of clusters is not known before the study. So `count`
    states the number that a recipe trains: a study with another number of clusters is an error, so that no
    dataset is omitted unnoticed. This sampler only selects rows: end the chain with a sampler that makes
    batches, such as `batch_shuffle`.

    Example:
        study:
          interactions: {model: ./base, data: ./datasets.yaml, loss: infonce}
        members:
          foreach: {cluster: [1, 2, 3]}
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: [{cluster: {of: $study, clusters: 3, number: $cluster}}, batch_shuffle]
    """

    number: Count = 1
    """The number of the cluster, from 1."""
    threshold: NonNegative | None = None
    """The distance up to which datasets are in one cluster."""
    clusters: Count | None = None
    """The number of clusters to make, in place of `threshold`."""
    count: Count | None = None
    """The number of clusters that the study must have; by default `clusters`."""

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.clusters is None):
            raise ValueError("give either threshold or clusters")
        if self.clusters is not None and self.count not in (None, self.clusters):
            raise ValueError(
                f"{self.clusters} clusters are made, so that count is not {self.count}"
            )
        if self._expected_count is not None and self.number > self._expected_count:
            raise ValueError(
                f"number {self.number} is beyond the {self._expected_count} clusters asked for"
            )

    @property
    def _expected_count(self) -> int | None:
        return self.clusters or self.count

    def choose_datasets(self, study: Study) -> NamedDatasets:
        clusters = study.find_clusters(distance=self.threshold, count=self.clusters)
        cluster_count = len(clusters)
        if self.number > cluster_count or self._expected_count not in (None, cluster_count):
            where = "" if self.threshold is None else f" at threshold {self.threshold:g}"
            numbers = ", ".join(str(number) for number in range(1, cluster_count + 1))
            count = f" and count: {cluster_count}" if self.count is not None else ""
            listed = " ".join(list_cluster_lines(clusters))
            raise DataError(
                f"the recipe asks for cluster {self.number} of {self._expected_count or 'any number'}, and "
                f"the study has {count_noun(cluster_count, 'cluster')}{where}: {listed}; write foreach: "
                f"{{cluster: [{numbers}]}}{count}, or cut elsewhere"
            )
        label = f"cluster {self.number} of {cluster_count}"
        return NamedDatasets(names=clusters[self.number - 1], known=study.names, label=label)


@dataclass(frozen=True, kw_only=True)
class Conflict(StudySampler):
    """The datasets of a conflicting pair, to train them jointly or alone (BOOM, arXiv:2602.05787).

    `of` is a study of interactions (`$id` of a step `interactions`, or the folder of a finished one). `rank`
    1 is the pair of datasets whose loss rises most when they are trained together.
    This sampler only selects rows: end the chain with a sampler that makes batches, such as `batch_shuffle`.

    Example:
        study:
          interactions: {model: ./base, data: ./datasets.yaml, loss: infonce}
        joint:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: [{conflict: {of: $study, rank: 1}}, batch_shuffle]
    """

    rank: Count = 1
    """Rank of the pair, from 1 for the strongest conflict."""
    member: Literal["both", "first", "second"] = "both"
    """Both datasets, or only one of them in alphabetical order."""

    def choose_datasets(self, study: Study) -> NamedDatasets:
        pairs = study.conflicts
        if self.rank > len(pairs):
            raise DataError(f"there is no pair {self.rank}: the study has {len(pairs)}")
        pair = pairs[self.rank - 1].names
        names = tuple(pair[number] for number in _PAIR_NUMBERS[self.member])
        return NamedDatasets(names=names, known=study.names, label=f"conflict {self.rank}")
