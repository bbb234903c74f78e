"""Checks of a study's trainings before the first one starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from emberge import DataEntry, EmbergeError, Preflight, Problem
from emberge.contracts import DatasetInfo, embedding_problems, loss_problems
from emberge.data import one_by_one
from emberge.training import FitOptions

from emberge_boom.study.study_run import StudyOptions, sample_size

if TYPE_CHECKING:
    from emberge.training import TrainingPreview


def check_training(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    """Yield problems of the model, data, losses and sampler, which all trainings share."""
    yield from _check_model(study, context)
    for sampler in study.sampler:
        yield from sampler.check(context)
    yield from _check_data(study, context)


def _check_model(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    folder = context.whole_model(study.model)
    if study.model.adapter or context.adapter(study.model):
        yield context.problem("a study starts from a whole model, not an adapter", "model")
    elif folder is not None:
        facts = study.backbone.describe(folder)
        for message in facts.problems:
            yield context.problem(message, "backbone")
        for message in embedding_problems(study.loss, facts):
            yield context.problem(message, "loss")


def _check_data(study: StudyOptions, context: Preflight) -> Iterator[Problem]:
    from emberge.data import check_datasets

    checked = check_datasets(context, study.data, show=False)
    yield from checked.problems
    for head in checked.heads:
        context.note(head.title, head.lines)
    infos = [(head.info, head.example.positive_scores is not None) for head in checked.heads]
    if not any(problem.severity == "error" for problem in checked.problems):
        try:
            counted = _count_samples(study, context)
            infos = [(info, info.scores is not None) for info in counted] or infos
        except EmbergeError as error:
            yield context.problem(str(error), "data")
    for info, is_scored in infos:
        for message in loss_problems(study.loss, info, scored=is_scored):
            yield context.problem(message, "loss")


def _count_samples(study: StudyOptions, context: Preflight) -> Sequence[DatasetInfo]:
    """Note the number of sampled rows; return the datasets, or none if they cannot be counted quickly.

    Raises:
        DataError: if a dataset has too few rows, or a sample fills no batch.
    """
    datasets = _preview(study, context, study.data).datasets
    if datasets:
        rows = sample_size(study.rows, {info.name: info.size for info in datasets})
        context.note("samples", [f"{rows:,} rows of each dataset"])
        entries = one_by_one(study.data).values()
        _preview(study, context, [dataclasses.replace(entry, limit=rows) for entry in entries])
    return datasets


def _preview(study: StudyOptions, context: Preflight, data: Sequence[DataEntry]) -> TrainingPreview:
    from emberge.training import preview_training

    return preview_training(
        data,
        readers=context.readers,
        resolve=context.data,
        sampler=study.sampler,
        losses=study.loss,
        options=FitOptions.of(study),
        seed=study.seed or 0,
    )
