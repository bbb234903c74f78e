"""Entries of statistics files by the models of a merge, and the problems with them.

An entry belongs to a model only if it was measured on that very content: the file has its fingerprint.
Everything here follows from headers; importing it loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge.contracts import Stage
from emberge.errors import CheckpointError, EmbergeError, Problem
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.request import MergeInput, MergeRequest, all_stages
from emberge.merging.statistics.statistics_file import StatisticsFile, open_statistics
from emberge.merging.tokens.token_rows import align_entry
from emberge.tensor_files import TensorSpec

Entries = Mapping[str, Mapping[str, TensorSpec]]


def own_entries(link: Stage, request: MergeRequest) -> dict[str, Mapping[str, TensorSpec]]:
    """Return each model's entries by place, of the files that a link names for itself.

    Raises:
        CheckpointError: when a model has no fingerprint to find its entries by, or is in no file.
    """
    if link.statistics_of != "models":
        return {}
    files = open_statistics(link, request.statistics)
    found = {}
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
        found[model.name] = file.entries.get(label, {})
    return found


def statistics_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield the problems of statistics files by their headers alone; not of files that are yet to be made."""
    seen: set[str] = set()
    for chain in request.chains:
        for link in all_stages(chain):
            try:
                files = open_statistics(link, request.statistics, steps=False)
                faults = [*_faults_of_files(link, files, request)]
            except EmbergeError as error:
                faults = [str(error)]
            yield from (Problem(fault) for fault in faults if fault not in seen)
            seen.update(faults)


def _faults_of_files(
    link: Stage, files: Sequence[StatisticsFile], request: MergeRequest
) -> Iterator[str]:
    faults = [fault for file in files for fault in _faults_of_file(link, file, request)]
    yield from faults
    if faults or link.statistics_of != "models":
        return
    if request.slices or request.part is not None:
        yield (
            f"'{link.name_in_recipes}' merges whole models by what was measured of them, and no slices; "
            "stack first, then measure"
        )
    elif len(files) == len(_named_files(link)):  # else a step is yet to make one
        places = ((model, len(_find_places(model, files))) for model in request.inputs)
        yield from (_place_fault(m, files, n) for m, n in places if m.fingerprint and n != 1)


def _faults_of_file(link: Stage, file: StatisticsFile, request: MergeRequest) -> Iterator[str]:
    if link.statistics_kind not in ("", file.measure):
        yield (
            f"{file.path}: holds {file.measure or 'another measure'}, and '{link.name_in_recipes}' needs "
            f"{link.statistics_kind}; make it with measure: {link.statistics_kind}"
        )
    base = request.base.fingerprint if request.base is not None else ""
    if base and file.base and file.base != base:
        yield (
            f"{file.path}: was measured from another base than this merge's (content {file.base[:12]}, not "
            f"{base[:12]}); measure it again"
        )


def _named_files(link: Stage) -> set[str]:
    return {file.text for file in link.own_files()}


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
    known = [f"{label} ({content[:12]})" for f in files for label, content in f.models.items()]
    listed = ", ".join(known) or "nothing"
    return (
        f"{where}: nothing was measured of '{model.name}' as it is now (content "
        f"{model.fingerprint[:12]}); there is {listed}; measure it again"
    )


def entry_problems(plan: MergePlan) -> Iterator[Problem]:
    """Yield the tensors that a stage cannot merge by the entries of their models."""
    request = plan.request
    known: dict[int, Entries] = {}
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        for link in all_stages(request.chains[request.chain_of(tensor.name)]):
            if id(link) not in known:
                known[id(link)] = _known_entries(link, request)
            fault = _entry_fault(link, tensor, known[id(link)], request)
            if fault:
                yield Problem(f"'{link.name_in_recipes}': {fault}", tensor.name)


def _entry_fault(link: Stage, tensor: TensorPlan, entries: Entries, request: MergeRequest) -> str:
    if not entries:
        return ""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for model, source in zip(request.inputs, tensor.sources, strict=True):
        if source is None:
            continue
        entry = entries[model.name].get(tensor.name)
        shapes[model.name] = None if entry is None else align_entry(entry, source, tensor.out).shape
    return link.entry_problem(tensor.name, tensor.out.shape, shapes)


def _known_entries(link: Stage, request: MergeRequest) -> Entries:
    """Return `own_entries`; nothing while they are unknown, or where others report their problems."""
    made = all(not t.startswith("$") or t in request.statistics for t in _named_files(link))
    if not made or not all(model.fingerprint for model in request.inputs):
        return {}
    try:
        return own_entries(link, request)
    except EmbergeError:
        return {}
