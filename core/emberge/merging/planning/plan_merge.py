"""A whole merge from headers and configs: what will be done, and everything that is wrong; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from emberge.contracts.step import Machine
from emberge.errors import CheckpointError, EmbergeError, Problem
from emberge.files.disk_space import disk_space_problems
from emberge.merging.adapters.adapter_reader import adapted_names
from emberge.merging.adapters.compare_adapters import compare_adapters
from emberge.merging.planning.effective_weights import EffectiveWeight, plan_effective_weights
from emberge.merging.planning.match_tensors import TensorPlan, match_tensors
from emberge.merging.planning.slices import (
    as_sliced,
    names_for_filters,
    plan_slices,
    requests_of,
    slice_depths,
)
from emberge.merging.planning.validate import request_problems
from emberge.merging.planning.warn import plan_warnings
from emberge.merging.request import Dtype, MergeInput, MergeRequest, Missing
from emberge.merging.stage_options import Resolver
from emberge.merging.tokens.align_tokens import TokenPlan, align_tokens
from emberge.merging.tokens.token_rows import moved_names
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.tensor_names import Names, canonical_names, depths, layer_of, parts_as_in
from emberge.tensor_files.foreign_formats import other_format
from emberge.tensor_files.safetensors_header import TensorSpec, total_bytes

__all__ = ["Dtype", "MergeInput", "MergePlan", "MergeRequest", "Missing", "plan_merge"]


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
    shares: Mapping[str, EffectiveWeight] = field(default_factory=dict)
    weight_sum: float = 0.0
    layers: Mapping[str, str] = field(default_factory=dict)
    depths: Mapping[str, float] = field(default_factory=dict)
    template: Checkpoint | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    unseen: frozenset[str] = frozenset()
    alike: bool = True
    licences: Mapping[str, str | None] = field(default_factory=dict)
    tokens: TokenPlan = field(default_factory=TokenPlan)
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
        from emberge.merging.planning.summary import outline  # the two know each other

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
    names, checkpoints, faults = _look(request, whole=out is not None)
    problems = [*request_problems(request), *faults]
    everyone = {m.name for m in (*request.inputs, request.base) if m is not None}
    unseen = frozenset(everyone - names.keys())
    try:
        template, pattern = _template(request, checkpoints, names)
    except EmbergeError as error:
        return MergePlan(request=request, problems=(*problems, Problem(str(error))), unseen=unseen)
    plan = MergePlan(request=request, problems=tuple(problems), template=template, unseen=unseen)
    if (template is None or pattern is None) and out is None:
        return _from_folders(plan, checkpoints)
    if template is None or pattern is None or (problems and unseen):
        return plan
    plan = _with_tensors(plan, checkpoints, names, pattern)
    room = disk_space_problems(plan.bytes, out, part) if out is not None else ()
    return replace(plan, problems=(*plan.problems, *room))


def _look(
    request: MergeRequest, *, whole: bool
) -> tuple[dict[str, Names], dict[str, Checkpoint], list[Problem]]:
    """(tensors of each model whose weights can be seen, each folder, what is wrong with them).

    With `whole` all weights must be there.
    """
    known = {m.name: m for m in (*request.inputs, request.base) if m is not None and m.folder}
    problems: list[Problem] = []
    names: dict[str, Names] = {}
    checkpoints: dict[str, Checkpoint] = {}
    for model in known.values():
        try:
            checkpoint = Checkpoint(model.folder or Path())
            checkpoints[model.name] = checkpoint
            if checkpoint.has_weights:
                found = adapted_names(
                    canonical_names(checkpoint), checkpoint, model.adapter, whole=whole
                )
                if found and request.vocabulary is not None:
                    found = request.vocabulary.applied(found, model.name, model.fingerprint)
                names.update({model.name: found} if found else {})
            elif whole or other_format(checkpoint.trunk):
                _ = checkpoint.specs  # says what the folder holds instead
        except EmbergeError as error:
            problems.append(Problem(str(error)))
    return names, checkpoints, problems


def _sliced(request: MergeRequest, out: Path | None, part: Path | None) -> MergePlan:
    """The plans of all slices as one."""
    from emberge.merging.planning.validate import filter_problems

    plans = [plan_merge(one, out=out, part=part) for one in requests_of(request)]
    plan = plan_slices(request, plans)
    if plan.tensors and not plan.unseen:
        plan = replace(plan, problems=(*plan.problems, *filter_problems(plan)))
    if not plan.problems:
        plan = _weighed(plan)
    licences = {name: stated for one in plans for name, stated in one.licences.items()}
    plan = replace(plan, licences=licences, alike=all(one.alike for one in plans))
    room = disk_space_problems(plan.bytes, out, part) if out is not None else ()
    return replace(plan, problems=tuple(dict.fromkeys((*plan.problems, *room))))


def _template(
    request: MergeRequest, checkpoints: Mapping[str, Checkpoint], names: Mapping[str, Names]
) -> tuple[Checkpoint | None, Names | None]:
    if request.template is not None:
        checkpoint = Checkpoint(request.template)
        return checkpoint, canonical_names(checkpoint) if checkpoint.has_weights else None
    first = next((m.name for m in request.inputs if m.name in names), None)
    return (checkpoints[first], names[first]) if first else (None, None)


def _from_folders(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> MergePlan:
    """What configs and tokenizers tell where no weights can be seen yet."""
    from emberge.merging.planning.validate import compare_folders

    seen = (checkpoints[m.name] for m in plan.request.inputs if m.name in checkpoints)
    template = plan.template or next(seen, None)
    if template is None:
        return plan
    tokens = align_tokens(plan.request, template, checkpoints, {})
    plan = replace(plan, template=template, tokens=tokens)
    faults, warnings = compare_folders(plan.request, template, checkpoints)
    faults, warnings = [*tokens.problems, *faults], [*warnings, *tokens.warnings]
    more = plan_warnings(plan, checkpoints)
    return replace(
        plan,
        problems=(*plan.problems, *faults),
        warnings=(*warnings, *more.warnings),
        alike=more.alike,
        licences=more.licences,
    )


def _with_tensors(
    plan: MergePlan,
    checkpoints: Mapping[str, Checkpoint],
    names: Mapping[str, Names],
    pattern: Names,
) -> MergePlan:
    from emberge.merging.planning.validate import (
        architectures_differ,
        compare_folders,
        tensor_problems,
    )

    assert plan.template is not None
    tokens = align_tokens(plan.request, plan.template, checkpoints, names, pattern)
    names, pattern = moved_names(names, pattern, tokens)
    faults, warnings = compare_folders(plan.request, plan.template, checkpoints)
    faults, warnings = [*tokens.problems, *faults], [*warnings, *tokens.warnings]
    adapted = compare_adapters(plan.request.inputs)
    faults, warnings = [*faults, *adapted[0]], [*warnings, *adapted[1]]
    names = {n: parts_as_in(names[n], checkpoints[n], plan.template) for n in names}
    names, pattern = as_sliced(plan.request, names, pattern)
    found = match_tensors(plan.request, plan.template, pattern, names)
    problems = [*plan.problems, *faults]
    if not any(architectures_differ(plan.request, plan.template, checkpoints)):
        problems += found.problems
    layers = {t.name: layer_of(t.name) for t in found.tensors}
    plan = replace(
        plan,
        tensors=tuple(found.tensors),
        tokens=tokens,
        dropped=tuple(found.dropped),
        renamed=found.renamed,
        layers=layers,
        depths=slice_depths(plan.request.part, layers) if plan.request.part else depths(layers),
    )
    problems += tensor_problems(plan)
    if not problems:
        plan = _weighed(plan)
        more = plan_warnings(plan, checkpoints)
        plan = replace(plan, alike=more.alike, licences=more.licences)
        found.warnings += more.warnings
    return replace(plan, problems=tuple(problems), warnings=(*warnings, *found.warnings))


def _weighed(plan: MergePlan) -> MergePlan:
    shares, total = plan_effective_weights(plan)
    weights = {name: share.mean for name, share in shares.items()}
    return replace(plan, weights=weights, shares=shares, weight_sum=total)


def weights_of(plan: MergePlan, tensor: TensorPlan) -> dict[str, float]:
    """The weight, as given, of each model that has the tensor."""
    depth = plan.depths.get(tensor.name, 0.0)
    called = names_for_filters(plan.request, tensor)
    return {
        model.name: model.weight.at(called[model.name], depth)
        for model, spec in zip(plan.request.inputs, tensor.sources, strict=True)
        if spec is not None or model.name in plan.unseen
    }


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
