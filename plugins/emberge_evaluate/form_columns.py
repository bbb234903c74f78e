"""Columns of an evaluation for each form of a model's embeddings: sizes and precisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emberge import Model, TaskInfo, TaskScore
from emberge.contracts import StoredForm
from emberge.evaluating import Comparison, FormFacts
from emberge.wording import join_some

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored

Models = Mapping[str, tuple[Scored, Model]]
TaskScores = Mapping[str, Mapping[str, TaskScore]]
# Reference, seed of the evaluation, and index of a column.
_Key = tuple[str, int | None, str | None]


@dataclass(frozen=True)
class ScoredModels:
    """Models and their scores on tasks, by the model's name in tables."""

    models: Models
    tasks: Sequence[TaskInfo]
    scores: TaskScores


def columns_by_form(models: Models, tasks: Sequence[TaskInfo], scores: TaskScores) -> ScoredModels:
    """Return a column `model@form` for every model and form; one per model if no task has forms."""
    forms = _find_forms(tasks)
    if not forms:
        return ScoredModels(models, tasks, scores)
    tasks_by_form = {form: [task for task in tasks if task.form == form] for form in forms}
    columns: dict[str, tuple[Scored, Model]] = {}
    scores_by_column: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in models.items():
        for form in forms:
            column = f"{name}@{form.label}"
            columns[column] = replace(scored, name=column, form=form), model
            scores_by_column[column] = {
                task.name_without_form: replace(scores[name][task.name], task=_remove_form(task))
                for task in tasks_by_form[form]
            }
    tasks_by_name = {task.name_without_form: _remove_form(task) for task in tasks}
    return ScoredModels(columns, list(tasks_by_name.values()), scores_by_column)


def tasks_of_columns(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return each task once, with form, seed and index removed from its name."""
    plain = [
        replace(_remove_form(task), name=task.plain_name, seed=None, index=None, index_of=None)
        for task in tasks
    ]
    return list({task.name: task for task in plain}.values())


def form_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if tasks are scored in different forms, so that their means cannot be compared."""
    forms = _find_forms(tasks)
    forms_by_task: dict[str, set[StoredForm | None]] = {}
    for task in tasks:
        forms_by_task.setdefault(task.name_without_form, set()).add(task.form)
    misfit_tasks = [name for name, found in forms_by_task.items() if found != set(forms)]
    if forms and misfit_tasks:
        labels = ", ".join(form.label for form in forms)
        yield (
            f"{join_some(misfit_tasks)}: not scored in every form of {labels}; give all evaluators the same "
            "dims and precisions, or put those without into an evaluation of their own"
        )


def read_form_facts(columns: ScoredModels) -> dict[str, FormFacts]:
    """Return the form of each column that has one, with the bytes and recall of its scores."""
    facts = {}
    for name, (scored, _) in columns.models.items():
        if scored.form is None:
            continue
        stored = [score.result.get("stored") or {} for score in columns.scores[name].values()]
        recalls = [one["recall"] for one in stored if "recall" in one]
        known_bytes = [int(one["bytes"]) for one in stored if "bytes" in one]
        if not known_bytes and scored.form.size is not None:
            known_bytes = [scored.form.count_bytes(scored.form.size)]
        facts[name] = FormFacts(
            scored.form,
            bytes=next(iter(known_bytes), None),
            recall=sum(recalls) / len(recalls) if recalls else None,
        )
    return facts


def compare_forms(
    judge: Judge, models: Models, groups: Sequence[str], arms: Sequence[Arm] = ()
) -> Iterator[Comparison]:
    """Yield the comparison of each form of a model or arm with its widest float32 form, by group of tasks.

    There is none for an evaluation whose forms are sizes alone: these are compared as models are.
    """
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    forms = list(dict.fromkeys(one.form for one, _ in models.values() if one.form is not None))
    whole = [form for form in forms if form.is_float32]
    if not whole or len(whole) == len(forms):
        return
    reference = max(whole, key=lambda form: (form.size is None, form.size or 0))
    columns: dict[_Key, dict[StoredForm | None, str]] = {}
    for name, (scored, _) in models.items():
        by_form = columns.setdefault(_name_without_form(scored), {})
        by_form[scored.form] = arm_of.get(name, name)
    pairs = {
        (by_form[form], by_form[reference]): None
        for by_form in columns.values()
        for form in by_form
        if form != reference and reference in by_form
    }
    for on in groups:
        yield from (judge.compare(form, whole_form, on) for form, whole_form in pairs)


def _name_without_form(scored: Scored) -> _Key:
    return scored.reference.text, scored.drawn, scored.index


def _find_forms(tasks: Sequence[TaskInfo]) -> list[StoredForm]:
    return list(dict.fromkeys(task.form for task in tasks if task.form is not None))


def _remove_form(task: TaskInfo) -> TaskInfo:
    return replace(task, name=task.name_without_form, form=None)
