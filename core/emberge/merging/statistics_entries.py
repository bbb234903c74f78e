"""Entries of statistics files by the models of a merge, and the problems with the files.

An entry belongs to a model only if it was measured on exactly that content: the file has the model's
fingerprint. All functions here read only headers; importing the module loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge.contracts import Stage, all_stages, list_statistics_files
from emberge.errors import CheckpointError, EmbergeError, Problem
from emberge.merging.request import MergeInput, MergeRequest
from emberge.merging.statistics_file import StatisticsFile, open_statistics
from emberge.tensor_files import TensorSpec


def own_entries(link: Stage, request: MergeRequest) -> dict[str, Mapping[str, TensorSpec]]:
    """Return each model's entries by tensor or layer, from the files that a link names itself.

    Raises:
        CheckpointError: if a model has no fingerprint by which to find its entries, or is in no file.
    """
    if link.statistics_of != "models":
        return {}
    files = open_statistics(link, request.statistics)
    entries_by_model = {}
    for model in request.inputs:
        if not model.fingerprint:
            raise CheckpointError(
                f"'{model.name}' has no fingerprint to hold its statistics against; give the MergeInput "
                "fingerprint=model_fingerprint(folder)"
            )
        places = _find_places(model, files)
        if len(places) != 1:
            raise CheckpointError(_place_fault(model, files, len(places)))
        file, label = places[0]
        entries_by_model[model.name] = file.entries.get(label, {})
    return entries_by_model


def statistics_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield the problems of existing statistics files, from their headers alone."""
    seen: set[str] = set()
    for chain in request.chains:
        for link in all_stages(chain):
            try:
                files = open_statistics(link, request.statistics, steps=False)
                faults = [*_check_files(link, files, request)]
            except EmbergeError as error:
                faults = [str(error)]
            yield from (Problem(fault) for fault in faults if fault not in seen)
            seen.update(faults)


def _check_files(
    link: Stage, files: Sequence[StatisticsFile], request: MergeRequest
) -> Iterator[str]:
    faults = [fault for file in files for fault in _check_file(link, file, request)]
    yield from faults
    if faults or link.statistics_of != "models":
        return
    if len(files) == len(
        {file.text for file in list_statistics_files(link)}
    ):  # else a step is yet to make one
        places = ((model, len(_find_places(model, files))) for model in request.inputs)
        yield from (_place_fault(m, files, n) for m, n in places if m.fingerprint and n != 1)


def _check_file(link: Stage, file: StatisticsFile, request: MergeRequest) -> Iterator[str]:
    if link.statistics_kind not in ("", file.measure):
        yield (
            f"{file.path}: holds {file.measure or 'another measure'}, and '{link.name_in_messages}' needs "
            f"{link.statistics_kind}; make it with measure: {link.statistics_kind}"
        )
    base = request.base.fingerprint if request.base is not None else ""
    if base and file.base and file.base != base:
        yield (
            f"{file.path}: was measured from another base than this merge's (content {file.base[:12]}, not "
            f"{base[:12]}); measure it again"
        )


def _find_places(
    model: MergeInput, files: Sequence[StatisticsFile]
) -> list[tuple[StatisticsFile, str]]:
    return [
        (file, label)
        for file in files
        for label, content in file.models.items()
        if content == model.fingerprint
    ]


def _place_fault(model: MergeInput, files: Sequence[StatisticsFile], count: int) -> str:
    where = ", ".join(str(file.path) for file in files) or "no statistics file"
    if count:
        return f"{where}: '{model.name}' was measured {count} times; name one file of each model"
    labels = [f"{label} ({content[:12]})" for f in files for label, content in f.models.items()]
    label_list = ", ".join(labels) or "nothing"
    return (
        f"{where}: nothing was measured of '{model.name}' as it is now (content "
        f"{model.fingerprint[:12]}); there is {label_list}; measure it again"
    )
