"""Labels whose numbers a merge needs, and those that its statistics files lack.

A stage that reads labels needs an entry of each model or group that it sees, for each tensor or its layer.
Everything here follows from headers; importing it loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.contracts import MergeTransform, Reference, Stage
from emberge.errors import EmbergeError, Problem, suggest
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.request import MergeInput, MergeRequest, all_stages
from emberge.merging.statistics.statistics_file import open_statistics
from emberge.wording import join_some

_SOME = 8


@dataclass(frozen=True)
class _Entries:
    """Entries of the files that a stage names: places (tensors or layers) by label."""

    stage: Stage
    files: str
    places: Mapping[str, Sequence[str]]

    def label_fault(self, label: str) -> str:
        """Return the problem of a label without any entry; "" for none."""
        if label in self.places:
            return ""
        known = join_some(self.places, _SOME) or "nothing"
        return (
            f"{self.files}: has no numbers of '{label}', by which '{self.stage.name_in_recipes}' merges; "
            f"there is {known}{suggest(label, self.places)}"
        )

    def layer_fault(self, label: str, layers: Sequence[str]) -> str:
        """Return the problem of a label that has entries, but none for some layers."""
        known = join_some(self.places[label], _SOME)
        return (
            f"{self.files}: has numbers of '{label}' for {known}, and none for "
            f"{join_some(layers, _SOME)}, which '{self.stage.name_in_recipes}' merges; measure a model of "
            "this architecture"
        )


def label_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield a problem for each label that a stage reads and its files lack."""
    known = _read_entries(request)
    found = [
        known[id(stage)].label_fault(label)
        for chain in request.chains
        for stage, labels in _label_readers(chain, request.inputs)
        for label in labels
        if id(stage) in known
    ]
    yield from map(Problem, filter(None, dict.fromkeys(found)))


def layer_problems(plan: MergePlan) -> Iterator[Problem]:
    """Yield a problem for each label that a stage's files have for other layers than the merged ones."""
    known, lacking = _read_entries(plan.request), dict[tuple[int, str], dict[str, None]]()
    for tensor in plan.tensors if known else ():
        layer, chain = plan.layers[tensor.name], plan.request.chain_of(tensor.name)
        for stage, labels in _label_readers(
            plan.request.chains[chain], _merged_models(tensor, plan)
        ):
            places = known[id(stage)].places if id(stage) in known else {}
            for label in labels:
                if label in places and not {layer, tensor.name} & set(places[label]):
                    lacking.setdefault((id(stage), label), {})[layer] = None
    for (stage_id, label), layers in lacking.items():
        yield Problem(known[stage_id].layer_fault(label, list(layers)))


def _merged_models(tensor: TensorPlan, plan: MergePlan) -> list[MergeInput]:
    """Return the models that a tensor is merged of; none for one that is copied."""
    if tensor.action != "merge":
        return []
    pairs = zip(plan.request.inputs, tensor.sources, strict=True)
    return [model for model, spec in pairs if spec is not None or model.name in plan.unseen]


def _label_readers(
    chain: Sequence[Stage], inputs: Sequence[MergeInput]
) -> Iterator[tuple[Stage, list[str]]]:
    """Yield each stage of a chain that reads labels, with those that it sees."""
    models: Sequence[str] = _names_in_run(inputs)
    groups: Sequence[str] = [model.group for model in inputs]
    for link in chain:
        for stage in all_stages([link]):
            if stage.statistics_of == "labels" and stage.own_files():
                # A missing group is a problem of its own.
                yield stage, [name for name in models if name]
        if isinstance(link, MergeTransform):
            left = link.remaining(models, groups)
            groups, models = (groups if left == models else left), left


def _names_in_run(inputs: Sequence[MergeInput]) -> list[str]:
    """Return the names that models have in the run, where a check calls them by their references.

    Those of `$run.checkpoints` and of equal names are not known before, and are "".
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


def _read_entries(request: MergeRequest) -> dict[int, _Entries]:
    """Return the entries of each stage's files, by the stage's id; not of files with other problems."""
    found = {}
    for chain in request.chains:
        for stage, _ in _label_readers(chain, request.inputs):
            try:
                entries = _read_stage_entries(stage, request)
            except EmbergeError:
                continue  # it is reported where the files are looked at
            if entries is not None:
                found[id(stage)] = entries
    return found


def _read_stage_entries(stage: Stage, request: MergeRequest) -> _Entries | None:
    """Return the entries of a stage's files; None for those yet to be made, or of another kind."""
    files = open_statistics(stage, request.statistics, steps=False)
    made = len(files) == len({file.text for file in stage.own_files()})
    if not made or any(stage.statistics_kind not in ("", file.measure) for file in files):
        return None
    places: dict[str, list[str]] = {}
    for file in files:
        for label, entries in file.entries.items():
            places.setdefault(label, []).extend(entries)
    return _Entries(stage, ", ".join(str(file.path) for file in files), places)
