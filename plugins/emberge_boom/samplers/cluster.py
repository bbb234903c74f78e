"""The sampler that keeps the datasets of one cluster."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Count, DataError, NonNegative
from emberge.wording import count_noun

from emberge_boom.samplers.study_sampler import Members, StudySampler
from emberge_boom.study.study import Study, cluster_lines


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
        if self._expected is not None and self.number > self._expected:
            raise ValueError(
                f"number {self.number} is beyond the {self._expected} clusters asked for"
            )

    @property
    def _expected(self) -> int | None:
        return self.clusters or self.count

    def members(self, study: Study) -> Members:
        clusters = study.clusters(threshold=self.threshold, count=self.clusters)
        found = len(clusters)
        if self.number > found or self._expected not in (None, found):
            where = "" if self.threshold is None else f" at threshold {self.threshold:g}"
            numbers = ", ".join(str(number) for number in range(1, found + 1))
            count = f" and count: {found}" if self.count is not None else ""
            listed = " ".join(cluster_lines(clusters))
            raise DataError(
                f"the recipe asks for cluster {self.number} of {self._expected or 'any number'}, and the "
                f"study has {count_noun(found, 'cluster')}{where}: {listed}; write foreach: "
                f"{{cluster: [{numbers}]}}{count}, or cut elsewhere"
            )
        label = f"cluster {self.number} of {found}"
        return Members(names=clusters[self.number - 1], known=study.names, label=label)
