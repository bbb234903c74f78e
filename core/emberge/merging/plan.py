"""A whole merge from headers and configs: what will be done, and everything that is wrong; loads no torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from emberge.contracts.chain import Rule
from emberge.contracts.merge import Stage
from emberge.contracts.schedule import PerTensor
from emberge.contracts.step import Machine
from emberge.errors import CheckpointError, EmbergeError, Problem
from emberge.merging.adapters import adapted_names
from emberge.merging.adapters_together import compare_adapters
from emberge.merging.alignment import Names, canonical_names, depths, layer_of, parts_as_in
from emberge.merging.checkpoint import Checkpoint, total_bytes
from emberge.merging.doubts import consider
from emberge.merging.formats import other_format
from emberge.merging.headers import TensorSpec
from emberge.merging.inventory import TensorPlan, take_inventory
from emberge.merging.options import ModelOptions, Resolver
from emberge.merging.scrutiny import scrutinise
from emberge.merging.shares import Share, shares_of
from emberge.merging.slices import (
    LayerRange,
    MergeSlice,
    as_sliced,
    names_for_filters,
    own_chain,
    plan_slices,
    requests_of,
    slice_depths,
)

__all__ = ["Dtype", "MergeInput", "MergePlan", "MergeRequest", "Missing", "plan_merge"]

Missing = Literal["strict", "copy_base", "average_present"]
Dtype = Literal["float32", "float16", "bfloat16", "float64"]


@dataclass(frozen=True)
class MergeInput:
    """One model of a merge. `folder` is None while a recipe is checked and the model is yet to be made.

    `options` are the model's own numbers for the options of a link: `{"trim": {"density": …}}`;
    `fingerprint` stands for its content and keys random masks and resumption; an `adapter` changes the model
    of `folder`, its base. `first` is the layer that a slice begins with.
    """

    name: str
    folder: Path | None
    weight: PerTensor = field(default_factory=lambda: PerTensor(1.0))
    group: str = ""
    options: ModelOptions = field(default_factory=dict)
    fingerprint: str = ""
    adapter: Path | None = None
    first: int | None = None


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """A merge as asked for. Fields as for `merge_checkpoints`."""

    inputs: tuple[MergeInput, ...]
    strategy: tuple[Stage, ...]
    base: MergeInput | None = None
    rules: tuple[Rule, ...] = ()
    out_dtype: Dtype | None = None
    template: Path | None = None
    tokenizer: Path | None = None
    missing: Missing = "strict"
    statistics: Mapping[str, Path] = field(default_factory=dict)
    slices: tuple[MergeSlice, ...] = ()
    part: LayerRange | None = None

    @property
    def everyone(self) -> tuple[MergeInput, ...]:
        """All models, and the base or bases."""
        bases = (self.base, *(one.base for one in self.slices))
        inside = (model for one in self.slices for model in one.inputs)
        return (*self.inputs, *inside, *(base for base in bases if base is not None))

    @property
    def chains(self) -> tuple[tuple[Stage, ...], ...]:
        """The rules' strategies in order, the one for the rest, and those of slices."""
        own = (one.strategy for one in self.slices if one.strategy is not None)
        return (*(rule.strategy for rule in self.rules), self.strategy, *own)

    def chain_of(self, name: str) -> int:
        """The place in `chains` of the strategy that owns a tensor."""
        for number, rule in enumerate(self.rules):
            if rule.matches(name):
                return number
        return len(self.rules) + (own_chain(self.slices, name) if self.slices else 0)


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """What a merge will do: each tensor of the output, and what is wrong or worth knowing.

    `weights` are each model's mean effective weight, by elements (divided by their sum where a strategy
    takes shares), and `shares` say how it varies; `weight_sum` is the mean sum of the weights as given.
    `unseen` names models that could not be looked at yet; `alike` says that those that could be differ in
    nothing beside their weights. `licences` are those that the parents' cards state.
    """

    request: MergeRequest
    tensors: tuple[TensorPlan, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, Share] = field(default_factory=dict)
    weight_sum: float = 0.0
    layers: Mapping[str, str] = field(default_factory=dict)
    depths: Mapping[str, float] = field(default_factory=dict)
    template: Checkpoint | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    unseen: frozenset[str] = frozenset()
    alike: bool = True
    licences: Mapping[str, str | None] = field(default_factory=dict)
    plans: tuple[MergePlan, ...] = ()
    """Those of the slices, where there are slices."""

    @property
    def bytes(self) -> int:
        """Size of the weights that come out."""
        return total_bytes(plan.out for plan in self.tensors)

    @property
    def merged(self) -> list[str]:
        """Names of the tensors that are merged."""
        return [plan.out.name for plan in self.tensors if plan.action == "merge"]

    @property
    def copied(self) -> list[str]:
        """Names of the tensors that are moved as they are."""
        return [plan.out.name for plan in self.tensors if plan.action == "copy"]

    @property
    def dtype(self) -> str:
        """The dtype that most of the merged bytes have."""
        sizes: dict[str, int] = {}
        for plan in self.tensors:
            if plan.out.mergeable:
                sizes[plan.out.dtype] = sizes.get(plan.out.dtype, 0) + plan.out.nbytes
        return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"

    def lines(self, machine: Machine | None = None) -> list[str]:
        """The plan in a few lines for people; what it costs is for `machine`, by default this one."""
        from emberge.merging.outline import outline  # the two know each other

        return outline(self, machine)


def plan_merge(
    request: MergeRequest, *, out: Path | None = None, part: Path | None = None
) -> MergePlan:
    """Look at all models' headers and configs and say what a merge would do and what is wrong with it.

    No weights are touched and nothing is raised: faults are the plan's `problems`. With `out`, the disk
    there must have room, beyond what the folder `part` of a killed merge holds already.
    """
    if request.slices:
        return _sliced(request, out, part)
    problems = list(scrutinise(request))
    known = {m.name: m for m in (*request.inputs, request.base) if m is not None and m.folder}
    names: dict[str, Names] = {}
    checkpoints: dict[str, Checkpoint] = {}
    for model in known.values():
        try:
            checkpoint = Checkpoint(model.folder or Path())
            checkpoints[model.name] = checkpoint
            if checkpoint.has_weights:
                found = adapted_names(
                    canonical_names(checkpoint), checkpoint, model.adapter, whole=out is not None
                )
                names.update({model.name: found} if found else {})
            elif out is not None or other_format(checkpoint.trunk):
                _ = checkpoint.specs  # says what the folder holds instead
        except EmbergeError as error:
            problems.append(Problem(str(error)))
    everyone = {m.name for m in (*request.inputs, request.base) if m is not None}
    unseen = frozenset(everyone - names.keys())
    try:
        template, pattern = _template(request, checkpoints, names)
    except EmbergeError as error:
        return MergePlan(request=request, problems=(*problems, Problem(str(error))), unseen=unseen)
    plan = MergePlan(request=request, problems=tuple(problems), template=template, unseen=unseen)
    if template is None or pattern is None or (problems and unseen):
        return plan
    plan = _with_tensors(plan, checkpoints, names, pattern)
    room = _room(plan, out, part) if out is not None else ()
    return replace(plan, problems=(*plan.problems, *room))


def _sliced(request: MergeRequest, out: Path | None, part: Path | None) -> MergePlan:
    """The plans of all slices as one."""
    from emberge.merging.scrutiny import scrutinise_filters

    plans = [plan_merge(one, out=out, part=part) for one in requests_of(request)]
    plan = plan_slices(request, plans)
    if plan.tensors and not plan.unseen:
        plan = replace(plan, problems=(*plan.problems, *scrutinise_filters(plan)))
    if not plan.problems:
        plan = _weighed(plan)
    room = _room(plan, out, part) if out is not None else ()
    return replace(plan, problems=tuple(dict.fromkeys((*plan.problems, *room))))


def _template(
    request: MergeRequest, checkpoints: Mapping[str, Checkpoint], names: Mapping[str, Names]
) -> tuple[Checkpoint | None, Names | None]:
    if request.template is not None:
        checkpoint = Checkpoint(request.template)
        return checkpoint, canonical_names(checkpoint) if checkpoint.has_weights else None
    first = next((m.name for m in request.inputs if m.name in names), None)
    return (checkpoints[first], names[first]) if first else (None, None)


def _with_tensors(
    plan: MergePlan,
    checkpoints: Mapping[str, Checkpoint],
    names: Mapping[str, Names],
    pattern: Names,
) -> MergePlan:
    from emberge.merging.scrutiny import (
        architectures_differ,
        compare_folders,
        scrutinise_tensors,
    )

    assert plan.template is not None
    faults, warnings = compare_folders(plan.request, plan.template, checkpoints)
    adapted = compare_adapters(plan.request.inputs)
    faults, warnings = [*faults, *adapted[0]], [*warnings, *adapted[1]]
    names = {n: parts_as_in(names[n], checkpoints[n], plan.template) for n in names}
    names, pattern = as_sliced(plan.request, names, pattern)
    found = take_inventory(plan.request, plan.template, pattern, names)
    problems = [*plan.problems, *faults]
    if not any(architectures_differ(plan.request, plan.template, checkpoints)):
        problems += found.problems
    layers = {t.name: layer_of(t.name) for t in found.tensors}
    plan = replace(
        plan,
        tensors=tuple(found.tensors),
        dropped=tuple(found.dropped),
        renamed=found.renamed,
        layers=layers,
        depths=slice_depths(plan.request.part, layers) if plan.request.part else depths(layers),
    )
    problems += scrutinise_tensors(plan)
    if not problems:
        plan = _weighed(plan)
        more = consider(plan, checkpoints)
        plan = replace(plan, alike=more.alike, licences=more.licences)
        found.warnings += more.warnings
    return replace(plan, problems=tuple(problems), warnings=(*warnings, *found.warnings))


def _weighed(plan: MergePlan) -> MergePlan:
    shares, total = shares_of(plan)
    weights = {name: share.mean for name, share in shares.items()}
    return replace(plan, weights=weights, shares=shares, weight_sum=total)


def plan_weights(plan: MergePlan, tensor: TensorPlan) -> dict[str, float]:
    """The weight, as given, of each model that has the tensor."""
    depth = plan.depths.get(tensor.name, 0.0)
    called = names_for_filters(plan.request, tensor)
    return {
        model.name: model.weight.at(called[model.name], depth)
        for model, spec in zip(plan.request.inputs, tensor.sources, strict=True)
        if spec is not None or model.name in plan.unseen
    }


def _room(plan: MergePlan, out: Path, part: Path | None) -> Iterator[Problem]:
    place = next(p for p in (out, *out.absolute().parents) if p.is_dir())
    free = shutil.disk_usage(place).free + (_held(part) if part is not None else 0)
    # A megabyte or so of configs and tokenizer stands beside the weights.
    if plan.bytes + (1 << 20) > free:
        yield Problem(
            f"the merged model needs {plan.bytes / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB "
            "free; make room or choose another place",
            str(out),
        )


def _held(part: Path) -> int:
    """Bytes of the disk that a folder's weights take; files have their full length from the start."""
    return sum(512 * path.stat().st_blocks for path in part.rglob("*.safetensors"))


def resolver(plan: MergePlan) -> Resolver:
    """What turns the stages' options into numbers for this merge."""
    called = {tensor.name: names_for_filters(plan.request, tensor) for tensor in plan.tensors}
    return Resolver({m.name: m.options for m in plan.request.inputs}, plan.depths, called)


def raise_problems(plan: MergePlan) -> None:
    """Raise the errors of a plan, if it has any, as one.

    Raises:
        CheckpointError: with a line for each.
    """
    errors = [p for p in plan.problems if p.severity == "error"]
    if errors:
        raise CheckpointError("\n".join(str(problem) for problem in errors))


def output_specs(plan: MergePlan) -> list[TensorSpec]:
    """The tensors that come out, in order."""
    return [tensor.out for tensor in plan.tensors]
