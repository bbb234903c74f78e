"""Entries and labels of statistics files by the models of a merge, and the problems with them.

An entry belongs to a model only if it was measured on exactly that content: the file has the model's
fingerprint. A stage that reads labels needs an entry of each model or group that it sees, for each tensor or
its layer. All functions here read only headers; importing the module loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.contracts import MergeTransform, Reference, Stage
from emberge.errors import CheckpointError, EmbergeError, Problem, suggest
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.request import MergeInput, MergeRequest, all_stages
from emberge.merging.statistics_file import StatisticsFile, open_statistics
from emberge.merging.tokens.token_rows import align_entry
from emberge.tensor_files import TensorSpec
from emberge.wording import join_some

_SHOWN_PLACES = 8
Entries = Mapping[str, Mapping[str, TensorSpec]]


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
    if len(files) == len(_list_named_files(link)):  # else a step is yet to make one
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


def _list_named_files(link: Stage) -> set[str]:
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
    labels = [f"{label} ({content[:12]})" for f in files for label, content in f.models.items()]
    label_list = ", ".join(labels) or "nothing"
    return (
        f"{where}: nothing was measured of '{model.name}' as it is now (content "
        f"{model.fingerprint[:12]}); there is {label_list}; measure it again"
    )


def entry_problems(plan: MergePlan) -> Iterator[Problem]:
    """Yield a problem for each tensor whose models lack the entries that its stage needs."""
    request = plan.request
    entries_by_link: dict[int, Entries] = {}
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        for link in all_stages(request.chains[request.chain_of(tensor.name)]):
            if id(link) not in entries_by_link:
                entries_by_link[id(link)] = _read_known_entries(link, request)
            fault = _find_entry_fault(link, tensor, entries_by_link[id(link)], request)
            if fault:
                yield Problem(f"'{link.name_in_messages}': {fault}", tensor.name)


def _find_entry_fault(
    link: Stage, tensor: TensorPlan, entries: Entries, request: MergeRequest
) -> str:
    if not entries:
        return ""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for model, source in zip(request.inputs, tensor.sources, strict=True):
        if source is None:
            continue
        entry = entries[model.name].get(tensor.name)
        shapes[model.name] = None if entry is None else align_entry(entry, source, tensor.out).shape
    return link.entry_problem(tensor.name, tensor.out.shape, shapes)


def _read_known_entries(link: Stage, request: MergeRequest) -> Entries:
    """Return `own_entries`; empty if they are unknown, or if another check reports their problems."""
    all_readable = all(
        not t.startswith("$") or t in request.statistics for t in _list_named_files(link)
    )
    if not all_readable or not all(model.fingerprint for model in request.inputs):
        return {}
    try:
        return own_entries(link, request)
    except EmbergeError:
        return {}


@dataclass(frozen=True)
class _StageEntries:
    """The tensors and layers that a stage's files have entries for, by label."""

    stage: Stage
    files: str
    places: Mapping[str, Sequence[str]]

    def label_fault(self, label: str) -> str:
        """Return the problem of a label without any entry; "" for none."""
        if label in self.places:
            return ""
        label_list = join_some(self.places, _SHOWN_PLACES) or "nothing"
        return (
            f"{self.files}: has no numbers of '{label}', by which '{self.stage.name_in_messages}' merges; "
            f"there is {label_list}{suggest(label, self.places)}"
        )

    def layer_fault(self, label: str, layers: Sequence[str]) -> str:
        """Return the problem of a label that has entries, but none for some layers."""
        label_list = join_some(self.places[label], _SHOWN_PLACES)
        return (
            f"{self.files}: has numbers of '{label}' for {label_list}, and none for "
            f"{join_some(layers, _SHOWN_PLACES)}, which '{self.stage.name_in_messages}' merges; measure a "
            "model of this architecture"
        )


def label_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield a problem for each label that a stage reads and its files lack."""
    entries_by_stage = _read_entries(request)
    faults = [
        entries_by_stage[id(stage)].label_fault(label)
        for chain in request.chains
        for stage, labels in _label_readers(chain, request.inputs)
        for label in labels
        if id(stage) in entries_by_stage
    ]
    yield from map(Problem, filter(None, dict.fromkeys(faults)))


def layer_problems(plan: MergePlan) -> Iterator[Problem]:
    """Yield a problem for each label whose entries do not cover the merged layers."""
    entries_by_stage = _read_entries(plan.request)
    missing_layers: dict[tuple[int, str], dict[str, None]] = {}
    for tensor in plan.tensors if entries_by_stage else ():
        layer, chain = plan.layers[tensor.name], plan.request.chain_of(tensor.name)
        for stage, labels in _label_readers(
            plan.request.chains[chain], _list_merged_models(tensor, plan)
        ):
            places = entries_by_stage[id(stage)].places if id(stage) in entries_by_stage else {}
            for label in labels:
                if label in places and not {layer, tensor.name} & set(places[label]):
                    missing_layers.setdefault((id(stage), label), {})[layer] = None
    for (stage_id, label), layers in missing_layers.items():
        yield Problem(entries_by_stage[stage_id].layer_fault(label, list(layers)))


def _list_merged_models(tensor: TensorPlan, plan: MergePlan) -> list[MergeInput]:
    """Return the models whose tensors are merged into a tensor; empty if it is copied."""
    if tensor.action != "merge":
        return []
    pairs = zip(plan.request.inputs, tensor.sources, strict=True)
    return [model for model, spec in pairs if spec is not None or model.name in plan.future_models]


def _label_readers(
    chain: Sequence[Stage], inputs: Sequence[MergeInput]
) -> Iterator[tuple[Stage, list[str]]]:
    """Yield each stage of a chain that reads labels, with the labels of its models."""
    models: Sequence[str] = _list_run_names(inputs)
    groups: Sequence[str] = [model.group for model in inputs]
    for link in chain:
        for stage in all_stages([link]):
            if stage.statistics_of == "labels" and stage.own_files():
                # A missing group is a problem of its own.
                yield stage, [name for name in models if name]
        if isinstance(link, MergeTransform):
            remaining_models = link.remaining(models, groups)
            groups, models = (
                (groups if remaining_models == models else remaining_models),
                remaining_models,
            )


def _list_run_names(inputs: Sequence[MergeInput]) -> list[str]:
    """Return the models' names in the run, which differ from the references used in a check.

    Names of models from `$run.checkpoints`, and equal names, are unknown before the run; they are "".
    """
    labels = [_name_in_run(model) for model in inputs]
    return [label if labels.count(label) == 1 else "" for label in labels]


def _name_in_run(model: MergeInput) -> str:
    reference = Reference(model.name)
    if reference.step is not None:
        return "" if reference.part else reference.step
    name = reference.main
    if model.folder is not None and name.startswith(("./", "../", "/", "~/")):
        name = model.folder.name
    return f"{name}+{model.adapter.name}" if reference.adapter and model.adapter else name


def _read_entries(request: MergeRequest) -> dict[int, _StageEntries]:
    """Return the entries of each stage's sound files, by the stage's id."""
    entries_by_stage = {}
    for chain in request.chains:
        for stage, _ in _label_readers(chain, request.inputs):
            try:
                entries = _read_stage_entries(stage, request)
            except EmbergeError:
                continue  # it is reported where the files are looked at
            if entries is not None:
                entries_by_stage[id(stage)] = entries
    return entries_by_stage


def _read_stage_entries(stage: Stage, request: MergeRequest) -> _StageEntries | None:
    """Return the entries of a stage's files; None if a file does not exist yet, or is of another kind."""
    files = open_statistics(stage, request.statistics, steps=False)
    all_readable = len(files) == len({file.text for file in stage.own_files()})
    if not all_readable or any(stage.statistics_kind not in ("", file.measure) for file in files):
        return None
    places: dict[str, list[str]] = {}
    for file in files:
        for label, entries in file.entries.items():
            places.setdefault(label, []).extend(entries)
    return _StageEntries(stage, ", ".join(str(file.path) for file in files), places)
