"""Scores on indexes that an older model embedded, and the share of the new model's gain kept on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from emberge import Model, TaskInfo, TaskScore
from emberge.contracts import StoredForm
from emberge.evaluating import GROUP_OF, GainKept, Verdict
from emberge.wording import join_some

from emberge_evaluate.comparison import Judge
from emberge_evaluate.form_columns import ScoredModels
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.seed_groups import Arm, Scored

Models = Mapping[str, tuple[Scored, Model]]


def columns_by_index(columns: ScoredModels) -> ScoredModels:
    """Return the columns, followed by a column `model on index` for each index.

    There is no extra column for a model on its own index, as its scores equal the model's column.
    """
    indexes = _map_labels_to_indexes(columns.tasks)
    if not indexes:
        return columns
    models: dict[str, tuple[Scored, Model]] = {}
    scores_by_column: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in columns.models.items():
        for label, index_of in [(None, None), *indexes.items()]:
            if index_of == scored.reference.text:
                continue
            column = name if label is None else f"{name} on {label}"
            models[column] = replace(scored, name=column, index=label, index_of=index_of), model
            scores_by_column[column] = {
                task.name_without_index: replace(
                    columns.scores[name][task.name], task=_remove_index(task)
                )
                for task in columns.tasks
                if task.index == label
            }
    tasks = {task.name_without_index: _remove_index(task) for task in columns.tasks}
    return ScoredModels(models, list(tasks.values()), scores_by_column)


def index_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if tasks are scored on different indexes, so that their means cannot be compared."""
    indexes = _map_labels_to_indexes(tasks)
    on: dict[str, set[str | None]] = {}
    for task in tasks:
        on.setdefault(task.plain_name, set()).add(task.index)
    if indexes and (
        misfit_tasks := [
            name for name, task_indexes in on.items() if task_indexes != {None, *indexes}
        ]
    ):
        yield (
            f"{join_some(misfit_tasks)}: not scored on the index {' and '.join(indexes)}; give all "
            "evaluators the "
            "same documents_of, or put those without into an evaluation of their own"
        )


def _map_labels_to_indexes(tasks: Sequence[TaskInfo]) -> Mapping[str, str | None]:
    """Map each index's label to the reference of the model that embedded the index."""
    return {label: task.index_of for task in tasks if (label := task.index) is not None}


def _remove_index(task: TaskInfo) -> TaskInfo:
    return replace(task, name=task.name_without_index, index=None, index_of=None)


def gains_kept(
    models: Models, arms: Sequence[Arm], judge: Judge, groups: Sequence[str]
) -> Iterator[GainKept]:
    """Yield the share of its gain that each arm keeps on each index whose model is scored, by group of tasks.

    The scores of an arm on an index are compared with those of the same models on their own index, and with
    those of the model that embedded the index.
    """
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    arm_on_own_index: dict[tuple[str, StoredForm | None], str] = {}
    for name, (scored, _) in models.items():
        if scored.index is None:
            arm_on_own_index.setdefault((scored.reference.text, scored.form), arm_of[name])
    seen_pairs = set()
    for name, (scored, _) in models.items():
        old_arm = arm_on_own_index.get((scored.index_of or "", scored.form))
        new = arm_on_own_index[scored.reference.text, scored.form]
        if old_arm is None or arm_of[name] in seen_pairs:
            continue
        seen_pairs.add(arm_of[name])
        for group in groups:
            yield judge.gain_kept(arm_of[name], new, old_arm, group)


def judge_gains(
    require: Sequence[Requirement], models: Models, arms: Sequence[Arm], judge: Judge
) -> Iterator[Verdict]:
    """Yield the verdict on every requirement about an index, for each arm and form."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    by_reference = {(s.reference.text, s.form, s.index): arm_of[n] for n, (s, _) in models.items()}
    indexes = {s.index: s.index_of or "" for s, _ in models.values() if s.index is not None}
    seen_demands = set()
    for requirement in require:
        if requirement.on_index_of is None or requirement.model is None:
            continue
        label, on = (
            requirement.index_label(indexes),
            GROUP_OF.get(requirement.tasks, requirement.tasks),
        )
        model_text, old_model = requirement.model.text, requirement.on_index_of.text
        for form in dict.fromkeys(scored.form for scored, _ in models.values()):
            three = [(model_text, form, label), (model_text, form, None), (old_model, form, None)]
            mixed, new, old_arm = (by_reference[place] for place in three)
            key = (mixed, on, requirement.gain_kept, requirement.confidence)
            if key not in seen_demands:
                seen_demands.add(key)
                yield judge.judge_gain(requirement, mixed, new, old_arm, on)
