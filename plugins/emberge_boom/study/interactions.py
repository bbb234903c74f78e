"""The `interactions` step: a study of the effect of training datasets together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from emberge import (
    Artifact,
    DataEntry,
    DataError,
    EmbergeError,
    Preflight,
    Problem,
    Step,
    StepRef,
    Workspace,
)
from emberge.data import one_by_one
from emberge.wording import prose, table_lines

from emberge_boom.study.affinity import Distance, LossProtocol, LossScale, Ranking
from emberge_boom.study.gather_study import gather_study
from emberge_boom.study.study import FILE, Interaction, Study, cluster_lines, write_study
from emberge_boom.study.study_checks import check_training
from emberge_boom.study.study_run import StudyOptions, StudyRun
from emberge_boom.study.tree import Linkage

TABLE = "interactions.md"
_CUTS = 6
_PAIRS = 3


@dataclass(frozen=True, kw_only=True)
class Interactions(StudyOptions, Step):
    """A study of datasets' synergies and conflicts: trainings on equal samples of each dataset and each pair.

    The study measures the mean training losses of each dataset alone (loss_i) and of each pair jointly
    (LC_ij). From these it computes LA_ij = (loss_i + loss_j) / 2, the difference LC_ij - LA_ij, a distance,
    and a tree of clusters (BOOM, arXiv:2602.05787, section 5.3). The samplers `cluster` and `conflict` choose
    datasets by the study; a report shows it as a heat map and a tree.

    Every training is a separate step, `id.alone=a` or `id.pair=a,b`, which keeps losses and no model;
    launchers may run these steps in parallel. There are n + n (n - 1) / 2 trainings for n datasets. The
    options of training are those of `train`. The order of `data` does not matter.

    Example:
        study:
          interactions:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            rows: 2000
    """

    produces = "file"

    loss_protocol: LossProtocol = "paper"
    """Mean losses over all steps of a training (`paper`), or over equally many steps of each dataset
    (`matched`). The two differ if a dataset takes different numbers of steps jointly and alone, or if the two
    datasets of a pair take different numbers of steps.
    """
    scale: LossScale = "loss"
    """Unit of losses: none (`loss`), or the mean loss of the dataset's separate training (`own`).

    With `loss`, the dataset with the larger losses dominates the result of a pair.
    """
    distance: Distance = "paper"
    """1 - LC / LA for pairs that help one another and LC / LA for others (`paper`), or LC / LA (`ratio`).

    With `paper`, the pair with the strongest synergy has the largest distance of all pairs with synergy. With
    `ratio` it has the smallest distance, and useful thresholds are near 1.
    """
    ranking: Ranking = "difference"
    """Order of the pairs that harm each other, for `conflict` and the tables: by LC - LA as in the paper
    (`difference`), or by LC / LA (`ratio`), so that small losses weigh as much as large ones."""
    linkage: Linkage = "average"
    """Distance of two clusters: the mean, smallest or largest distance of their pairs."""
    _runs: dict[str, StepRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_last:
            raise ValueError("keep_last: a study keeps no model")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows must be at least 1, not {self.rows}")

    def expand(self) -> Mapping[str, Step]:
        """Return a training step for each dataset and each pair, if the datasets are known."""
        try:
            entries = one_by_one(self.data)
        except EmbergeError:
            return {"": self}  # the check reports why
        if len(entries) < 2:
            return {"": self}
        alone = {f"alone={name}": self._run(entries, (name,)) for name in entries}
        pairs = combinations(entries, 2)
        return {**alone, **{f"pair={a},{b}": self._run(entries, (a, b)) for a, b in pairs}}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return dataclasses.replace(self, _runs=dict(parts))

    def _run(self, entries: Mapping[str, DataEntry], names: Sequence[str]) -> StudyRun:
        shared_options = {f.name for f in dataclasses.fields(StudyOptions)} - {"data"}
        other_entries = () if self.rows else tuple(e for n, e in entries.items() if n not in names)
        return StudyRun(
            **{name: getattr(self, name) for name in shared_options},
            data=tuple(entries[name] for name in names),
            beside=other_entries,
        )

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self._runs:
            yield context.problem(_explain_missing_datasets(self.data), "data")
            return
        yield from check_training(self, context)
        count = sum(name.startswith("alone=") for name in self._runs)
        pairs = len(self._runs) - count
        context.note("study", [f"{count} datasets: {count} trainings alone and {pairs} of pairs"])

    def run(self, workspace: Workspace) -> Artifact:
        """Write the study from the losses that the trainings left.

        Raises:
            DataError: if losses cannot be compared.
        """
        from emberge_boom.study.study_figures import figures_of

        if not self._runs:
            raise DataError(_explain_missing_datasets(self.data))
        study = gather_study(
            [workspace.artifact(reference) for reference in self._runs.values()],
            loss_protocol=self.loss_protocol,
            distance=self.distance,
            linkage=self.linkage,
            scale=self.scale,
            ranking=self.ranking,
        )
        write_study(workspace.folder, study)
        (workspace.folder / TABLE).write_text(table_of(study), encoding="utf-8")
        parent = workspace.artifact(next(iter(self._runs.values())))[1].parents
        return Artifact(
            kind="file",
            parents=parent,
            details={
                "file": FILE,
                "table": TABLE,
                **_summarise(study),
                "figures": figures_of(study),
            },
        )


def _summarise(study: Study) -> dict[str, Any]:
    """Return a summary of the study for the artifact and the report."""
    return {
        "datasets": {
            name: {"task": study.tasks[name], "rows": study.rows, "of": study.sizes[name]}
            for name in study.names
        },
        "loss_protocol": study.loss_protocol,
        "scale": study.scale,
        "distance": study.distance,
        "linkage": study.linkage,
        "ranking": study.ranking,
        "heights": list(study.heights),
        "conflicts": [list(interaction.pair) for interaction in study.conflicts[:3]],
    }


def _explain_missing_datasets(data: Sequence[DataEntry]) -> str:
    try:
        datasets = one_by_one(data)
    except EmbergeError as error:
        return str(error)
    return f"an interaction is between two datasets, and there is {len(datasets) or 'none'}"


def table_of(study: Study) -> str:
    """Return as Markdown the pairs that harm or help each other most, and the first cuts of the tree."""
    conflicts = study.conflicts
    most = ", ".join(map(_show_change, conflicts[:_PAIRS]))
    most_helpful = ", ".join(map(_show_change, conflicts[: -_PAIRS - 1 : -1]))
    rows = [
        [f"{threshold:.4g}", str(len(clusters)), "; ".join(cluster_lines(clusters))]
        for threshold, clusters in study.cuts()[:_CUTS]
    ]
    return "\n".join(
        [
            f"Loss of {len(conflicts)} pairs when trained together, {study.rows:,} rows of each dataset:",
            f"most harm {most}; most help {most_helpful}.",
            "",
            *table_lines(["threshold from", "clusters", "which"], rows, "rrl"),
            "",
        ]
    )


def _show_change(interaction: Interaction) -> str:
    pair = prose(" + ".join(interaction.pair))
    return f"{pair} {interaction.delta:+.4f} ({100 * interaction.change:+.1f} %)"
