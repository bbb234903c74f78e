"""Checks of a study's trainings before the first one starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from emberge import DataEntry, DataError, EmbergeError, PerDataset, Preflight, Problem
from emberge.contracts import embedding_problems, loss_problems
from emberge.data import one_by_one
from emberge.training import FitOptions

from emberge_boom.study.study_run import StudyOptions, sample_size

if TYPE_CHECKING:
    from emberge.data import CheckedData
    from emberge.training import TrainingPreview


def check_training(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    """Yield problems of the model, data, losses and sampler, which all trainings share."""
    from emberge.data import check_datasets

    folder = context.whole_model(study.model)
    if study.model.adapter is not None:
        yield context.problem("a study starts from a whole model, not an adapter", "model")
    elif folder is not None:
        facts = study.backbone.describe(folder)
        for message in facts.problems:
            yield context.problem(message, "backbone")
        for message in embedding_problems(study.loss, facts):
            yield context.problem(message, "loss")
    for sampler in study.sampler:
        yield from sampler.check(context)
    checked = check_datasets(context, study.data, show=False)
    yield from checked.problems
    loss_problems_found = list(_check_losses(study, context, checked))
    yield from loss_problems_found
    if not any(
        problem.severity == "error" for problem in (*checked.problems, *loss_problems_found)
    ):
        yield from _show_samples(study, context)


def _check_losses(
    study: StudyOptions, context: Preflight, checked: CheckedData
) -> Iterator[Problem]:
    for head in checked.heads:
        context.note(head.title, head.lines)
        scored = head.example.positive_scores is not None
        for fault in loss_problems(study.loss, head.info, scored=scored):
            yield context.problem(fault, "loss")


def _show_samples(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    """Note the number of sampled rows and steps, if the data can be counted quickly."""
    try:
        preview = _plan_training(study, context, study.data)
    except EmbergeError as error:
        yield context.problem(str(error), "sampler")
        return
    if not preview.datasets:
        return
    yield from _check_scores(study, context, preview)
    try:
        rows = sample_size(study.rows, preview.sizes)
    except DataError as error:
        yield context.problem(str(error), "rows")
        return
    lines = [f"{rows:,} rows of each dataset"]
    for name, entry in one_by_one(study.data).items():
        try:
            steps = _plan_training(
                study, context, [dataclasses.replace(entry, limit=rows)], name
            ).steps
        except EmbergeError as error:
            yield context.problem(f"{name}, {rows} rows: {error}", "sampler")
        else:
            lines.append(f"{name}: {steps:,} steps alone")
    context.note("samples", lines)


def _check_scores(
    study: StudyOptions, context: Preflight, preview: TrainingPreview
) -> Iterator[Problem]:
    """Yield problems of losses that need scores which a dataset lacks."""
    for info in preview.datasets:
        for fault in loss_problems(study.loss, info, scored=info.scores is not None):
            yield context.problem(fault, "loss")


def _plan_training(
    study: StudyOptions, context: Preflight, data: Sequence[DataEntry], *names: str
) -> TrainingPreview:
    from emberge.training import preview_training

    narrowed = PerDataset.narrow(study, names) if names else study
    return preview_training(
        data,
        readers=context.readers,
        resolve=context.data,
        sampler=[
            PerDataset.narrow(sampler, names) if names else sampler for sampler in study.sampler
        ],
        losses=study.loss,
        options=FitOptions.of(narrowed),
        seed=study.seed or 0,
    )
