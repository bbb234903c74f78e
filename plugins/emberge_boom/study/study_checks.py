"""Checks of a study's trainings before the first one starts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataEntry, DataError, EmbergeError, Preflight, Problem
from emberge.contracts import embedding_problems, loss_problems
from emberge.training import FitOptions

from emberge_boom.study.study_run import StudyOptions, narrow_options, sample_size

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

    narrowed = narrow_options(study, names) if names else study
    return preview_training(
        data,
        readers=context.readers,
        resolve=context.data,
        sampler=[narrow_options(sampler, names) if names else sampler for sampler in study.sampler],
        losses=study.loss,
        options=FitOptions.of(narrowed),
        seed=study.seed or 0,
    )


def one_by_one(entries: Sequence[DataEntry]) -> dict[str, DataEntry]:
    """Return the data entry of each dataset by a distinct label, in alphabetical order.

    The names of a catalogue's sets are read from it; if a step of the recipe writes the catalogue, `only`
    must name the sets.

    Raises:
        DataError: if the names of the datasets cannot be known.
    """
    labelled_entries = [labelled for entry in entries for labelled in _split_entry(entry)]
    labels = [re.sub(r"[^\w.-]+", "-", label) for label, _ in labelled_entries]
    repeated_labels = {label for label in labels if labels.count(label) > 1}
    named = {
        f"{label}-{number}" if label in repeated_labels else label: entry
        for number, (label, (_, entry)) in enumerate(zip(labels, labelled_entries, strict=True))
    }
    return dict(sorted(named.items()))


def _split_entry(entry: DataEntry) -> list[tuple[str, DataEntry]]:
    if entry.only:
        return [(name, dataclasses.replace(entry, only=(name,))) for name in entry.only]
    if entry.path is None:
        return [(entry.name or str(entry.hub).rpartition("/")[2], entry)]
    if entry.path.step is not None:
        raise DataError(
            f"the sets that {entry.path} will hold are not known yet; name them under `only`"
        )
    path = entry.path.folder / Path(entry.path.text).expanduser()
    if path.is_dir() or path.suffix in (".yaml", ".yml"):
        from emberge.data import load_catalogue

        names = [str(listed.name) for listed in load_catalogue(path).train]
        return [(name, dataclasses.replace(entry, only=(name,))) for name in names]
    return [(entry.name or path.name.partition(".")[0], entry)]
