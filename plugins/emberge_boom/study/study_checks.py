"""The checks of a study's trainings before the first of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from emberge import DataEntry, DataError, EmbergeError, Preflight, Problem
from emberge.contracts import dimension_problems, loss_problems
from emberge.training import FitOptions

from emberge_boom.study.one_by_one import one_by_one
from emberge_boom.study.study_options import StudyOptions
from emberge_boom.study.study_run import narrowed, sample_size

if TYPE_CHECKING:
    from emberge.data import CheckedData
    from emberge.training import TrainingPreview

__all__ = ["check_training"]


def check_training(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    """Yield problems of the model, the data, the losses and the sampler, once for all trainings."""
    from emberge.data import check_datasets

    folder = context.whole_model(study.model)
    if study.model.adapter is not None:
        yield context.problem("a study starts from a whole model, not an adapter", "model")
    elif folder is not None:
        facts = study.backbone.describe(folder)
        for message in facts.problems:
            yield context.problem(message, "backbone")
        for message in dimension_problems(study.loss, facts.dimension):
            yield context.problem(message, "loss")
    for sampler in study.sampler:
        yield from sampler.check(context)
    checked = check_datasets(context, study.data, show=False)
    yield from checked.problems
    found = list(_check_losses(study, context, checked))
    yield from found
    if not any(problem.severity == "error" for problem in (*checked.problems, *found)):
        yield from _preview_samples(study, context)


def _check_losses(
    study: StudyOptions, context: Preflight, checked: CheckedData
) -> Iterator[Problem]:
    for head in checked.heads:
        context.note(head.title, head.lines)
        scored = head.example.positive_scores is not None
        for fault in loss_problems(study.loss, head.info, scored=scored):
            yield context.problem(fault, "loss")


def _preview_samples(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    """Note the rows that are sampled and the steps they make, if the data can be counted quickly."""
    try:
        whole = _preview(study, context, study.data)
    except EmbergeError as error:
        yield context.problem(str(error), "sampler")
        return
    if not whole.datasets:
        return
    yield from _check_scores(study, context, whole)
    try:
        rows = sample_size(study.rows, whole.sizes)
    except DataError as error:
        yield context.problem(str(error), "rows")
        return
    lines = [f"{rows:,} rows of each dataset"]
    for name, entry in one_by_one(study.data).items():
        try:
            steps = _preview(study, context, [dataclasses.replace(entry, limit=rows)], name).steps
        except EmbergeError as error:
            yield context.problem(f"{name}, {rows} rows: {error}", "sampler")
        else:
            lines.append(f"{name}: {steps:,} steps alone")
    context.note("samples", lines)


def _check_scores(
    study: StudyOptions, context: Preflight, whole: TrainingPreview
) -> Iterator[Problem]:
    """Yield what the losses have against the scores of whole datasets."""
    for info in whole.datasets:
        for fault in loss_problems(study.loss, info, scored=info.scores is not None):
            yield context.problem(fault, "loss")


def _preview(
    study: StudyOptions, context: Preflight, data: Sequence[DataEntry], *names: str
) -> TrainingPreview:
    from emberge.training import preview_training

    own = narrowed(study, names) if names else study
    return preview_training(
        data,
        readers=context.readers,
        resolve=context.data,
        sampler=[narrowed(one, names) if names else one for one in study.sampler],
        options=FitOptions.of(own),
        seed=study.seed or 0,
    )
