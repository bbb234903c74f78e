"""The `find_mixture` step: the worth of each dataset of a training, before the training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from emberge import (
    Artifact,
    DataError,
    EmbergeError,
    Expected,
    ModelRef,
    NumberRange,
    PerDataset,
    Positive,
    PositiveShare,
    Preflight,
    Problem,
    Step,
    StepRef,
    Workspace,
)
from emberge.data import check_datasets, check_eval_sets

from emberge_weights.mixture.groups import Group, group_datasets
from emberge_weights.mixture.short_training import ShortTraining, ShortTrainingOptions
from emberge_weights.search_options import read_seen_sets
from emberge_weights.weight_sets import SetEntry, describe_few, read_sets, unusable

# Beyond so many groups their trainings cost about as much as the training whose mixture is sought.
MANY = 20
_ROUNDING = 1e-3


@dataclass(frozen=True, kw_only=True)
class FindMixture(ShortTrainingOptions, Step):
    """The worth of each dataset of a training, found from short trainings of each; what harms is taken out.

    A merge of models that were trained from one base behaves like their ensemble, and stands here for one
    training on their data. So every dataset gets a few short trainings (`seeds`, each of `max_steps` steps),
    whose models embed the texts of `development` once. The score of the mixture without one dataset is then
    that of the weighted mean of the other models' embeddings: a dataset is worth the score with it less the
    score without it. The intervals count queries and seeds, and hold for all datasets together with 95 %.

    The result has a share for each dataset, for `sampler: {proportional: {shares: $mixture}}`: those of
    `shares` (by default equal) without the datasets that harm, if real merges confirm it. It does not choose
    between finer shares. In related work merges stand for mixtures of a language model's data (MergeMix,
    arXiv:2601.17858; DeMix, arXiv:2602.00747; Merge-to-Mix, arXiv:2505.16066).

    Each short training is a separate step, `id.set=a,seed=1`; launchers may run these steps in parallel. The
    options of training are those of `train`. Beyond about twenty datasets name `clusters`, which are trained
    together.

    Example:
        mixture:
          find_mixture:
            model: ./base
            data: ./datasets.yaml
            development: {path: ./datasets.yaml, split: dev}
            loss: infonce
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {proportional: {shares: $mixture}}
    """

    produces = "file"
    loads = ("torch",)

    development: tuple[SetEntry, ...]
    """Evaluation sets to judge by, of all domains that count; their `dev` halves are used."""
    shares: dict[str, PositiveShare] = field(default_factory=dict)
    """Shares of the mixture that is judged, by dataset or cluster; they sum to 1 and are equal by default."""
    clusters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of clusters, and the datasets that each trains together; other datasets are trained alone."""
    seeds: Annotated[int, NumberRange(least=2)] = 3
    """Trainings of each dataset; their spread is part of the intervals."""
    scales: tuple[Positive, ...] = (1.0, 1.5, 2.0)
    """Lengths of the merges' step away from the base, as multiples of the specialists' mean; the best is
    taken."""
    _runs: Mapping[str, StepRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scales:
            raise ValueError("scales names no length; 1 is the specialists' mean")
        if self.shares and abs(sum(self.shares.values()) - 1) > _ROUNDING:
            raise ValueError(f"shares sum to {sum(self.shares.values()):g}, not to 1")

    def expand(self) -> Mapping[str, Step]:
        """Return the short trainings of each dataset or cluster, if the datasets are known."""
        try:
            groups = self._list_groups()
        except EmbergeError:
            return {"": self}  # the check reports why
        if len(groups) < 2:
            return {"": self}
        draws = range(1, 1 + self.seeds)
        return {
            f"set={name},seed={draw}": self._build_training(entries, draw)
            for name, entries in groups.items()
            for draw in draws
        }

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return dataclasses.replace(self, _runs=dict(parts))

    def _list_groups(self) -> dict[str, Group]:
        return group_datasets(self.data, self.clusters, self.shares)

    def _build_training(self, entries: Group, draw: int) -> ShortTraining:
        shared_options = {option.name for option in dataclasses.fields(ShortTrainingOptions)}
        options = {name: getattr(self, name) for name in shared_options - {"data"}}
        names = tuple(entries)
        training = ShortTraining(**options, data=tuple(entries.values()), draw=draw)
        narrowed = PerDataset.narrow(training, names)
        sampler = tuple(PerDataset.narrow(part, names) for part in training.sampler)
        return dataclasses.replace(narrowed, sampler=sampler)

    # ── before the run ──────────────────────────────────────────────────────────────────────────

    def check(self, context: Preflight) -> Iterator[Problem]:
        context.expect(Expected(Artifact(kind="file", parents=(self.model.text,))))
        if not self._runs:
            yield context.problem(self._explain_missing_groups(), "data")
            return
        if self.model.adapter is not None:
            yield context.problem("a mixture is for a whole model, not an adapter", "model")
        # Each short training loads its own sets alone: all of them are compared here.
        yield from check_datasets(context, self.data, show=False).problems
        yield from self._check_development(context)
        groups = self._list_groups()
        for fault, option in self._check_names(
            [name for group in groups.values() for name in group]
        ):
            yield context.problem(fault, option)
        count, steps = len(self._runs), self.max_steps
        lines = [f"{len(groups)} sets, {self.seeds} trainings of each: {count} trainings"]
        if steps is not None:
            lines[0] += f" of {steps} steps, {count * steps:,} steps in all"
        context.note("mixture", lines)
        if len(groups) > MANY:
            yield context.warning(
                f"{len(groups)} sets are trained alone, {self.seeds} times each; put datasets of one kind "
                "together with `clusters`",
                "data",
            )

    def _check_names(self, datasets: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (problem, option) for each name in options by dataset that none of the datasets has."""
        for option, fault in PerDataset.find_all_unknown(self, datasets):
            yield fault, option
        for sampler in self.sampler:
            for _, fault in PerDataset.find_all_unknown(sampler, datasets):
                yield fault, "sampler"

    def _check_development(self, context: Preflight) -> Iterator[Problem]:
        if not self.development:
            yield context.problem(
                "development names no evaluation set; take a catalogue's sets with a dev half, or rows held "
                "out of the training data by the step split",
                "development",
            )
        for entry in self.development:
            sets, faults = check_eval_sets(context, entry, entry.split)
            for fault in faults:
                yield context.problem(
                    f"{fault}; or hold rows out of its training data by the step split",
                    "development",
                )
            reasons = [reason for one in sets if (reason := unusable(one, "task"))]
            if not (faults or reasons) and context.data(entry.path) is not None:
                seen = read_seen_sets([entry], "task", context)
                reasons = [few for one in seen if (few := one.describe_few())]
            for reason in reasons:
                yield context.problem(reason, "development")
            if entry.split == "test":
                yield context.warning(
                    "a mixture is chosen on a test half; what is reported on it will look better than it is",
                    "development",
                )

    def _explain_missing_groups(self) -> str:
        try:
            groups = self._list_groups()
        except EmbergeError as error:
            return str(error)
        return (
            f"a mixture is of two datasets or more, and there is {len(groups) or 'none'}; give every dataset "
            "an entry or a name in the catalogue"
        )

    # ── the run ─────────────────────────────────────────────────────────────────────────────────

    def run(self, workspace: Workspace) -> Artifact:
        """Write the shares and what each dataset is worth.

        Raises:
            DataError: if a development set has too few queries.
        """
        from emberge_weights.mixture.judge import MixtureJudge
        from emberge_weights.mixture.mixture_result import write_mixture

        if not self._runs:
            raise DataError(self._explain_missing_groups())
        groups = self._list_groups()
        sets = list(read_sets(self.development, workspace.data, workspace.readers, "task"))
        for one in sets:
            few = describe_few(one.name, one.unit, len(one.queries))
            if few is not None:
                raise DataError(few)
        specialists = {
            name: [
                workspace.model(ModelRef(self._runs[f"set={name},seed={draw}"].text))
                for draw in range(1, 1 + self.seeds)
            ]
            for name in groups
        }
        total = sum(self.shares.values())
        given = {name: self.shares[name] / total if total else 1 / len(groups) for name in groups}
        trained = {name: workspace.artifact(self._runs[f"set={name},seed=1"])[1] for name in groups}
        judge = MixtureJudge(
            specialists=specialists,
            base=workspace.model(self.model),
            shares=given,
            scales=self.scales,
            sets=sets,
            backbone=self.backbone,
            max_length=self.max_length.default,
            workspace=workspace,
        )
        trainings = [workspace.artifact(part)[1] for part in self._runs.values()]
        return write_mixture(
            judge.run(),
            datasets={name: tuple(one.details["datasets"]) for name, one in trained.items()},
            rows={name: _count_rows(one) for name, one in trained.items()},
            steps=sum(int(one.details["steps"]) for one in trainings),
            cpu_seconds=sum(float(one.details["cpu_seconds"]) for one in trainings),
            parents=(judge.base.name,),
            workspace=workspace,
        )


def _count_rows(trained: Artifact) -> int:
    """Return the rows of a short training's datasets."""
    return sum(int(facts["of"]) for facts in trained.details["datasets"].values())
