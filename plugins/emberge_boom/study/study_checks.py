"""The checks of a study's trainings before the first of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataEntry, DataError, EmbergeError, Preflight, Problem
from emberge.contracts import dimension_problems, loss_problems
from emberge.training import FitOptions

from emberge_boom.study.study_run import StudyOptions, narrow_options, sample_size

if TYPE_CHECKING:
    from emberge.data import CheckedData
    from emberge.training import TrainingPreview


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
    """Note the number of sampled rows and steps, if the data can be counted quickly."""
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
    """Yield the losses' problems with the scores of whole datasets."""
    for info in whole.datasets:
        for fault in loss_problems(study.loss, info, scored=info.scores is not None):
            yield context.problem(fault, "loss")


def _preview(
    study: StudyOptions, context: Preflight, data: Sequence[DataEntry], *names: str
) -> TrainingPreview:
    from emberge.training import preview_training

    own = narrow_options(study, names) if names else study
    return preview_training(
        data,
        readers=context.readers,
        resolve=context.data,
        sampler=[narrow_options(one, names) if names else one for one in study.sampler],
        options=FitOptions.of(own),
        seed=study.seed or 0,
    )


def one_by_one(entries: Sequence[DataEntry]) -> dict[str, DataEntry]:
    """Return an entry for each dataset by a distinct label, in alphabetical order.

    A catalogue is read for the names of its sets; of one that a step writes, `only` must name them.

    Raises:
        DataError: where it is not known which datasets there are.
    """
    found = [one for entry in entries for one in _split(entry)]
    labels = [re.sub(r"[^\w.-]+", "-", label) for label, _ in found]
    twice = {label for label in labels if labels.count(label) > 1}
    named = {
        f"{label}-{number}" if label in twice else label: entry
        for number, (label, (_, entry)) in enumerate(zip(labels, found, strict=True))
    }
    return dict(sorted(named.items()))


def _split(entry: DataEntry) -> list[tuple[str, DataEntry]]:
    if entry.only:
        return [(name, dataclasses.replace(entry, only=(name,))) for name in entry.only]
    if entry.path is None:
        return [(entry.name or str(entry.hub).rpartition("/")[2], entry)]
    if entry.path.step is not None:
        raise DataError(
            f"the sets that {entry.path} will hold are not known yet; name them under `only`"
        )
    place = entry.path.folder / Path(entry.path.text).expanduser()
    if place.is_dir() or place.suffix in (".yaml", ".yml"):
        from emberge.data import load_catalogue

        names = [str(one.name) for one in load_catalogue(place).train]
        return [(name, dataclasses.replace(entry, only=(name,))) for name in names]
    return [(entry.name or place.name.partition(".")[0], entry)]
