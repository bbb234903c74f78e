"""The sampler that keeps the datasets of one cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emberge import Count, DataError, NonNegative

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
    """The distance up to which datasets are in one cluster, in the study's own measure of distance."""
    clusters: Count | None = None
    """The number of clusters to make, in place of `threshold`."""
    count: Count | None = None
    """The number of clusters that the study must have; by default `clusters`."""

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.clusters is None):
            raise ValueError("give either threshold or clusters")
        for name in ("number", "clusters", "count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.threshold is not None and not 0 <= self.threshold < math.inf:
            raise ValueError(f"threshold is a distance from 0 on, not {self.threshold:g}")
        if self.clusters is not None and self.count not in (None, self.clusters):
            raise ValueError(
                f"{self.clusters} clusters are made, so that count is not {self.count}"
            )
        expected_count = self.clusters or self.count
        if expected_count is not None and self.number > expected_count:
            raise ValueError(
                f"number {self.number} is beyond the {expected_count} clusters asked for"
            )

    def members(self, study: Study) -> Members:
        clusters = study.clusters(threshold=self.threshold, count=self.clusters)
        expected_count = self.count or self.clusters
        if self.number > len(clusters) or (
            expected_count is not None and expected_count != len(clusters)
        ):
            raise DataError(self._explain_misfit(clusters, expected_count))
        label = f"cluster {self.number} of {len(clusters)}"
        return Members(names=clusters[self.number - 1], known=study.names, label=label)

    def lines(self, study: Study) -> list[str]:
        clusters = study.clusters(threshold=self.threshold, count=self.clusters)
        return [f"{len(clusters)} clusters {self._where}:", *cluster_lines(clusters)]

    @property
    def _where(self) -> str:
        if self.threshold is not None:
            return f"at threshold {self.threshold:g}"
        return f"where {self.clusters} are asked for"

    def _explain_misfit(
        self, clusters: tuple[tuple[str, ...], ...], expected_count: int | None
    ) -> str:
        count = len(clusters)
        request = f"cluster {self.number}" if self.number > count else f"{expected_count} clusters"
        numbers = ", ".join(str(number) for number in range(1, count + 1))
        count_text = f" and count: {count}" if self.count is not None else ""
        return (
            f"the recipe asks for {request}, and the study has {count} {self._where} "
            f"({'; '.join(cluster_lines(clusters))}); write foreach: {{cluster: [{numbers}]}}{count_text}, "
            "or cut elsewhere"
        )
