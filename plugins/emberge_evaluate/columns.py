"""Columns of an evaluation by model, size of embeddings and seed; arms of columns that differ in seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emberge import Model, ModelRef, TaskInfo, TaskScore
from emberge.wording import join_some

from emberge_evaluate.scores import ColumnKey

SEED = "seed"


@dataclass(frozen=True)
class Column:
    """Column of an evaluation: its key, and the model by reference and as it was found."""

    key: ColumnKey
    reference: ModelRef
    model: Model
    recipe_name: str | None = None
    """Name that the recipe gives the model."""

    @property
    def name(self) -> str:
        """Name of the column in tables."""
        return self.key.name

    @property
    def step(self) -> str | None:
        """Id of the step that made the model; None without one."""
        return self.reference.step if self.reference.part is None else None

    @property
    def training_seed(self) -> str:
        """Seed of the `foreach` of the model's step, as `seed=1`; "" without one."""
        seed = read_variables(self.step or "").get(SEED)
        return f"{SEED}={seed}" if seed else ""

    @property
    def arm(self) -> ColumnKey:
        """Key of the column's arm: without the seeds of the training and of the evaluation."""
        model = self.key.model
        if self.step is not None and self.training_seed:
            model = self.recipe_name or _remove_seed(self.step)
        return ColumnKey(model, self.key.size)

    @property
    def seeds(self) -> str:
        """Seeds that distinguish the column within its arm: `seed=1`, `#1` or both."""
        drawn = "" if self.key.seed is None else f"#{self.key.seed}"
        return ",".join(filter(None, [self.training_seed, drawn]))

    def is_like(self, other: Column) -> bool:
        """Return whether both columns have the same size of embeddings and the same seed."""
        return (self.key.size, self.key.seed) == (other.key.size, other.key.seed)


def read_variables(step: str) -> dict[str, str]:
    """Return the variables in a step's id: ratio and seed from `members.ratio=0.2,seed=1`."""
    _, _, suffix = step.partition(".")
    pairs = (pair.partition("=") for pair in suffix.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _remove_seed(step: str) -> str:
    """Return the step's id without the seed."""
    group = step.partition(".")[0]
    values = [f"{name}={value}" for name, value in read_variables(step).items() if name != SEED]
    return f"{group}.{','.join(values)}" if values else group


@dataclass(frozen=True)
class ScoredColumns:
    """Scores by names of columns (model, embedding size, seed) and of tasks, which have no size or seed."""

    columns: Sequence[Column]
    tasks: Sequence[TaskInfo]
    scores: Mapping[str, Mapping[str, TaskScore]]


def split_columns(
    models: Sequence[Column],
    tasks: Sequence[TaskInfo],
    scores: Mapping[str, Mapping[str, TaskScore]],
) -> ScoredColumns:
    """Return a column for each size of embeddings and each seed of every model.

    `scores` are those of models by name and label of the task. A task without a seed has the same score in
    all columns of a model.
    """
    sizes, seeds = (_list_values(tasks, axis) or [None] for axis in ("size", "seed"))
    columns: list[Column] = []
    by_column: dict[str, dict[str, TaskScore]] = {}
    for model, size, seed in itertools.product(models, sizes, seeds):
        column = replace(model, key=ColumnKey(model.key.model, size, seed))
        columns.append(column)
        by_column[column.name] = {
            task.name: scores[model.name][task.label]
            for task in tasks
            if task.size in (None, size) and task.seed in (None, seed)
        }
    return ScoredColumns(columns, merge_variants(tasks), by_column)


def merge_variants(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return each task once, without size and seed."""
    return list({task.name: replace(task, size=None, seed=None) for task in tasks}.values())


def find_incomplete_column_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if no column would have all tasks: they have different sizes or different seeds."""
    for axis, where, option in (
        ("size", "at every size", "dims"),
        ("seed", "under every seed", "seeds"),
    ):
        values = _list_values(tasks, axis)
        values_by_task: dict[str, set[int | None]] = {}
        for task in tasks:
            values_by_task.setdefault(task.name, set()).add(getattr(task, axis))
        # A task without a seed is in the columns of all seeds.
        allowed: tuple[set[int | None], ...] = ({*values}, {None} if axis == "seed" else {*values})
        unfit = [name for name, task_values in values_by_task.items() if task_values not in allowed]
        if values and unfit:
            yield (
                f"{join_some(unfit)}: not scored {where} of {', '.join(map(str, values))}; give all "
                f"evaluators the same {option}, or put those with others into an evaluation of their own"
            )


def _list_values(tasks: Sequence[TaskInfo], axis: str) -> list[int | None]:
    values = (getattr(task, axis) for task in tasks)
    return list(dict.fromkeys(value for value in values if value is not None))


@dataclass(frozen=True)
class Arm:
    """Columns that differ in nothing but their seeds, each by its seeds; one column alone has its own key.

    `columns_by_draw` are the names of the columns of each independent draw, by its seed.
    """

    key: ColumnKey
    columns: Mapping[str, str]
    columns_by_draw: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """Name of the arm in tables."""
        return self.key.name

    @classmethod
    def of(cls, key: ColumnKey, columns: Mapping[str, str]) -> Arm:
        """Return the arm of columns by seeds, each an independent draw."""
        return cls(key, columns, {seeds: (name,) for seeds, name in columns.items()})


def find_arms(columns: Iterable[Column]) -> tuple[Arm, ...]:
    """Return the arms of all columns, in the order of their first columns."""
    by_arm: dict[ColumnKey, list[Column]] = {}
    for column in columns:
        by_arm.setdefault(column.arm, []).append(column)
    taken_names = {column.name for several in by_arm.values() for column in several}
    return tuple(_build_arm(key, several, taken_names) for key, several in by_arm.items())


def _build_arm(key: ColumnKey, several: Sequence[Column], taken_names: set[str]) -> Arm:
    """Return the arm of columns that differ by seed alone, by another name if a column has that one.

    If trainings have several seeds, the seeds of an evaluation are not independent draws: each model counts
    once, with its mean over the evaluation's seeds.
    """
    if len(several) == 1:
        return Arm.of(several[0].key, {several[0].seeds or "1": several[0].name})
    columns: dict[str, str] = {}
    grouped: dict[str, list[str]] = {}
    for number, column in enumerate(several, 1):
        seeds = column.seeds or str(number)
        columns[seeds if seeds not in columns else f"{seeds} ({number})"] = column.name
        grouped.setdefault(column.training_seed or column.key.model, []).append(column.name)
    is_drawn_twice = len(grouped) > 1 and any(column.key.seed is not None for column in several)
    if key.name in taken_names:
        key = replace(key, model=f"{key.model} (all)")
    if not is_drawn_twice:
        return Arm.of(key, columns)
    return Arm(key, columns, {seed: tuple(names) for seed, names in grouped.items()})
