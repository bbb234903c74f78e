"""Scores of an evaluation by column and task, with intervals, means, comparisons, verdicts and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emberge.contracts import LESS_IS_BETTER, TrainingCost

from emberge_evaluate.task_groups import TITLE_BY_DOMAIN, TITLE_BY_MEAN, read_group_kind

# Confidence interval: its lower and its upper end.
Interval = tuple[float, float]


@dataclass(frozen=True)
class ColumnKey:
    """Column of scores: a model, with a size of embeddings and a seed if it was scored at several."""

    model: str
    size: int | None = None
    seed: int | None = None

    @property
    def name(self) -> str:
        """Name of the column in tables: `model`, `model@256`, `model#1`."""
        size = "" if self.size is None else f"@{self.size}"
        return f"{self.model}{size}" if self.seed is None else f"{self.model}{size}#{self.seed}"


@dataclass(frozen=True)
class ScoredTask:
    """Task that models were scored on; `domain` is "in", "out", "elsewhere", or None: unknown."""

    name: str
    kind: str = ""
    metric: str = ""
    languages: tuple[str, ...] = ()
    domain: str | None = None
    note: str = ""
    unit: str = ""
    units: int | None = None
    """Number of queries, pairs or texts (`unit`) that the score was computed from."""


@dataclass(frozen=True)
class Estimate:
    """Score, its spread (standard deviation) over several seeds, and its interval; None if unknown."""

    mean: float
    spread: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Comparison:
    """Difference of two scores (0 to 1, or losses) on a task or in a mean over tasks, and its interval.

    It is that of `model` minus that of `reference`: models, or arms with means over seeds. `less_is_better`
    is True for losses. `by_seed` are the differences for each seed, if both arms have the same seeds or one
    is a single model.
    """

    model: str
    reference: str
    task_or_mean: str
    difference: float
    interval: Interval | None = None
    by_seed: Mapping[str, float] | None = None
    less_is_better: bool = False

    @property
    def verdict(self) -> str:
        """Conclusion that the interval allows: better, worse, no clear difference, or unknown."""
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        if self.less_is_better:
            low, high = -high, -low
        if not low <= high:  # numbers that are not defined
            return "unknown"
        if low > 0:
            return "better"
        return "worse" if high < 0 else "no clear difference"


@dataclass(frozen=True)
class Verdict:
    """Result of one requirement on two models or arms: whether it is met, in words and numbers.

    `demand` is "not_worse_than", "better_than" or "forgetting" (compared with `other`), by `margin` points on
    `tasks`; `lower_bound` is the lower bound of the `difference`.
    """

    text: str
    met: bool
    model: str = ""
    other: str = ""
    demand: str = ""
    tasks: str = "all"
    margin: float = 0.0
    difference: float = 0.0
    lower_bound: float = 0.0


@dataclass(frozen=True)
class Scores:
    """Scores as shares, or losses, by model and task. `fingerprints` hash the models' weights.

    If models were trained with several seeds, `pooled` has the scores by arm: its models are the arms,
    `members` are each arm's models by seed, and `spreads` are over these. A model that was scored at several
    sizes of embeddings, or under several seeds of the evaluation, has several `columns`. `forgetting`
    compares the base with each model made from it, on tasks in no model's training domain: how much less the
    model scores. `comparisons` are with the first model, and those of further pairs that the recipe asks for.
    """

    fingerprints: Mapping[str, str]
    tasks: tuple[ScoredTask, ...]
    values: Mapping[str, Mapping[str, float]]
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    forgetting: tuple[Comparison, ...] = ()
    requirements: tuple[Verdict, ...] = ()
    costs: Mapping[str, TrainingCost] = field(default_factory=dict)
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    members: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    columns: Mapping[str, ColumnKey] = field(default_factory=dict)
    """Keys of columns that have a size or a seed, by name."""
    pooled: Scores | None = None

    def list_members(self, model: str) -> tuple[str, ...]:
        """Return the names of an arm's models, or the model's own name."""
        return tuple(self.members.get(model, {"": model}).values())

    def find_column(self, name: str) -> ColumnKey:
        """Return the key of a column; that of a whole model is its name."""
        return self.columns.get(name, ColumnKey(name))

    def list_columns(self, model: str) -> tuple[str, ...]:
        """Return the names of a model's columns: its own name, or one for each size and seed."""
        return tuple(name for name in self.fingerprints if self.find_column(name).model == model)

    def list_verdicts(self, name: str) -> tuple[Verdict, ...]:
        """Return the verdicts on a column: on columns of the same weights and size, and on its arm, too."""
        weights, size = self.fingerprints[name], self.find_column(name).size
        names = {name} | {
            other
            for other, fingerprint in self.fingerprints.items()
            if weights and fingerprint == weights and self.find_column(other).size == size
        }
        arms = self.pooled.members if self.pooled is not None else {}
        names |= {arm for arm, members in arms.items() if names & {*members.values()}}
        return tuple(verdict for verdict in self.requirements if verdict.model in names)

    @property
    def models(self) -> tuple[str, ...]:
        """Models in the order scored."""
        return tuple(self.fingerprints)

    @property
    def reference(self) -> str | None:
        """Name of the model with which the others are compared: the first."""
        return next(iter(self.fingerprints), None)

    @property
    def further_references(self) -> tuple[str, ...]:
        """Names of models other than the first with which a recipe compares models, in order."""
        references = dict.fromkeys(comparison.reference for comparison in self.comparisons)
        return tuple(name for name in references if name != self.reference)

    def list_compared(self, reference: str) -> tuple[str, ...]:
        """Return the names of the models that are compared with a model, in order."""
        names = (each.model for each in self.comparisons if each.reference == reference)
        return tuple(dict.fromkeys(names))

    def find_value(self, model: str, task_or_mean: str) -> float | None:
        """Return a model's score on a task or in a mean over tasks; None if there is no score."""
        means = self.means.get(model, {})
        # A task may have the name of a mean.
        if task_or_mean in TITLE_BY_MEAN:
            return means.get(task_or_mean)
        return self.values.get(model, {}).get(task_or_mean, means.get(task_or_mean))

    def find_interval(self, model: str, task_or_mean: str) -> Interval | None:
        """Return the interval of a model's score; None if it is unknown."""
        return self.intervals.get(model, {}).get(task_or_mean)

    def find_spread(self, model: str, task_or_mean: str) -> float | None:
        """Return the standard deviation of a score over seeds; None without several seeds."""
        return self.spreads.get(model, {}).get(task_or_mean)

    @property
    def less_is_better(self) -> bool:
        """True if the evaluation has losses instead of scores, so that less is better; it never has both."""
        return any(task.metric in LESS_IS_BETTER for task in self.tasks)

    @property
    def ranks(self) -> Mapping[str, float]:
        """Mean distance of each model from the best score of a task, scaled so that the worst has models - 1.

        On a task, this rank is (models - 1) · (best - score) / (best - worst), and 0 if all scores are equal.
        Over tasks, it is the mean (BidirLM, arXiv:2604.02045). There are no ranks for losses, two models, one
        task, or missing scores.
        """
        rows = [[self.values[m].get(task.name) for m in self.models] for task in self.tasks]
        complete_rows = [[v for v in row if v is not None] for row in rows]
        if self.less_is_better or len(self.models) < 3 or len(rows) < 2 or complete_rows != rows:
            return {}
        ranks = [_normalise_ranks(row) for row in complete_rows]
        return {m: sum(row[i] for row in ranks) / len(ranks) for i, m in enumerate(self.models)}

    def group_tasks(self) -> dict[str, list[str]]:
        """Map the title in `TITLE_BY_DOMAIN` of each domain with tasks to the names of its tasks."""
        names_by_domain = {
            title: [task.name for task in self.tasks if task.domain == domain]
            for domain, title in TITLE_BY_DOMAIN.items()
        }
        return {title: names for title, names in names_by_domain.items() if names}

    @property
    def known_means(self) -> tuple[str, ...]:
        """Names of the means that any model has: in the order of `TITLE_BY_MEAN`, then those of kinds."""
        known = dict.fromkeys(mean for means in self.means.values() for mean in means)
        kinds = (mean for mean in known if read_group_kind(mean) is not None)
        return (*(mean for mean in TITLE_BY_MEAN if mean in known), *kinds)

    def find_forgotten(self, model: str) -> Estimate | None:
        """Return how much a model forgot of its base's abilities, above 0 if it got worse; None: unknown."""
        comparison = next((one for one in self.forgetting if one.reference == model), None)
        if comparison is None:
            return None
        if not comparison.less_is_better:
            return Estimate(comparison.difference, None, comparison.interval)
        low, high = comparison.interval or (0.0, 0.0)
        turned = None if comparison.interval is None else (-high, -low)
        return Estimate(-comparison.difference, None, turned)

    def conclude(self, comparison: Comparison) -> str:
        """Return the verdict on a difference by its interval, or by the bound of a met requirement."""
        key = (comparison.model, comparison.reference, "better_than", abs(comparison.difference))
        for one in self.requirements if comparison.verdict == "no clear difference" else ():
            if one.met and (one.model, one.other, one.demand, abs(one.difference)) == key:
                return f"barely better: the one-sided bound is {100 * one.lower_bound:+.2f}"
        return comparison.verdict

    def find_difference(
        self, model: str, task_or_mean: str, reference: str | None = None
    ) -> Comparison | None:
        """Return the comparison of a model with the reference on a task or mean; None without both scores.

        It has no interval if the evaluation did not make this comparison.
        """
        reference = reference or self.reference
        key = (model, reference, task_or_mean)
        for one in self.comparisons:
            if (one.model, one.reference, one.task_or_mean) == key:
                return one
        if reference is None or model == reference:
            return None
        score = self.find_value(model, task_or_mean)
        other_score = self.find_value(reference, task_or_mean)
        if score is None or other_score is None:
            return None
        difference, less_is_better = score - other_score, self.less_is_better
        return Comparison(model, reference, task_or_mean, difference, less_is_better=less_is_better)


def _normalise_ranks(scores: Sequence[float]) -> list[float]:
    """Return each score's distance from the best, scaled so that the best has 0 and the worst n - 1."""
    best, worst = max(scores), min(scores)
    span = best - worst
    return [(len(scores) - 1) * (best - score) / span if span else 0.0 for score in scores]


def leave_out_parts(evaluations: Sequence[tuple[str, Scores]]) -> list[tuple[str, Scores]]:
    """Return named evaluations without those whose scores another one has, beside others."""
    contents = [
        {
            (fingerprint, task.name, scores.values.get(model, {}).get(task.name))
            for model, fingerprint in scores.fingerprints.items()
            for task in scores.tasks
        }
        for _, scores in evaluations
    ]
    return [
        evaluation
        for evaluation, content in zip(evaluations, contents, strict=True)
        if not any(content < other for other in contents)
    ]
