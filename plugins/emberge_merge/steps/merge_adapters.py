"""The `merge_adapters` step: adapters of one base in, an adapter of it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from emberge import (
    Artifact,
    CheckpointError,
    Count,
    FileRef,
    ModelRef,
    Preflight,
    Problem,
    Stage,
    Step,
    Workspace,
)
from emberge.contracts import MergeDetails
from emberge.merging import MergeInput, MergeRequest, plan_merge
from emberge.results import find_adapted_base

from emberge_merge.adapters.adapter_checks import describe_language_adapters, find_adapter_problems
from emberge_merge.adapters.low_rank import Combination, Truncation
from emberge_merge.methods.weighted_sums import Linear, TaskArithmetic
from emberge_merge.steps.artifacts import (
    add_sizes,
    compute_training_cost,
    describe_adapter,
    find_trainings,
    name_parents,
)
from emberge_merge.steps.merge_options import (
    FindInputs,
    ModelEntry,
    Weights,
    build_inputs,
    describe_later_weights,
    find_in_check,
    find_in_run,
    find_one_input,
    find_weight_problems,
    list_members,
    locate_statistics,
    name_base,
    read_weight_factors,
)


@dataclass(frozen=True, kw_only=True)
class MergeAdapters(Step):
    """Merge models of one base into an adapter on it.

    With `linear` or `task_arithmetic` and no `rank`, the adapters' factors are concatenated: the result is
    exact, and its rank is the sum of the adapters' ranks. With a `rank`, the changes of any strategy are cut
    to their largest singular values, and the artifact shows how much is left out of each tensor. Modules that
    the adapters save whole are merged by the same strategy and saved whole. The result is a folder that peft
    reads, and `$step` means the base with the adapter on it. `merge` makes a whole model instead.

    Example:
        merged:
          merge_adapters:
            models: [./base+./legal, ./base+./faq]
            strategy: linear
            rank: 16
    """

    produces = "model"
    loads = ("torch",)

    models: tuple[ModelEntry, ...]
    """`base+adapter` each, or steps that made adapters; with a `rank` whole fine-tunes too."""
    strategy: tuple[Stage, ...] = (Linear(),)
    """A name, or a list of links whose last one merges, as `merge` takes it."""
    base: ModelRef | None = None
    """The base of the result; by default that of the first model."""
    weights: Weights = "equal"
    """`size` multiplies each weight by the number of examples that the model was trained on."""
    rank: Count | None = None
    """Singular values kept of each matrix."""

    def __post_init__(self) -> None:
        if self.rank is None and _build_combination(self.strategy) is None:
            names = ", ".join(link.name_in_recipes for link in self.strategy)
            raise ValueError(
                f"'{names}' makes no sum of the adapters' factors; give a 'rank' to cut its changes to, or "
                "take linear or task_arithmetic"
            )

    def find_adapted_model(self) -> ModelRef:
        return self.base or self.models[0].model

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there are no models to merge", "models")
            return
        find = partial(find_in_check, context)
        base = self._find_base(find)
        request = self._build_request(find, base)
        if self.weights != "equal":
            yield from find_weight_problems(self.models, context, self.weights)
            request = replace(request, weights_by=describe_later_weights(self.weights))
        plan = plan_merge(request)
        for problem in plan.problems:
            yield context.problem(str(problem), "models")
        if plan.problems:
            return
        for warning in (*plan.warnings, *describe_language_adapters(plan)):
            yield context.warning(warning, "models")
        combination = _build_combination(self.strategy)
        for problem in find_adapter_problems(plan, base, Truncation(self.rank), combination):
            yield context.problem(str(problem), "models")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_merge.adapters.merge_to_adapter import merge_to_adapter

        find, members = partial(find_in_run, workspace), list_members(self.models, workspace)
        base, factors = self._find_base(find), None
        self._require_base(workspace)
        if self.weights != "equal":
            factors = read_weight_factors(self.weights, members, workspace.data)
        request = self._build_request(
            find, base, workspace.data, factors=factors, seed=workspace.seed
        )
        combination = _build_combination(self.strategy)
        report = merge_to_adapter(request, base, workspace, Truncation(self.rank), combination)
        adapted, parents = self.find_adapted_model(), name_parents(members, request.inputs)
        pairs = list(zip(parents, request.inputs, strict=True))
        trainings = find_trainings(members)
        return Artifact(
            kind="model",
            size=add_sizes(model for _, model in members),
            parents=tuple(dict.fromkeys(parents)),
            details=MergeDetails(
                strategy=[link.plain() for link in self.strategy],
                weights={parent: report.weights[model.name] for parent, model in pairs},
                model_options={p: i.plain_options for p, i in pairs if i.options},
                models={p: one.fingerprint for p, (_, one) in zip(parents, members, strict=True)},
                weights_by_layer=report.findings,
                training_cost=compute_training_cost(trainings),
            ),
            origin="merged",
            base=find_adapted_base(workspace.models(adapted)[0], adapted),
            adapter=describe_adapter(report, workspace),
            trainings=trainings,
        )

    def _find_base(self, find: FindInputs) -> MergeInput:
        """Return the base of the result: the option `base`, or the base of the first model's adapter."""
        if self.base is not None:
            return find_one_input(find, self.base)
        reference = self.models[0].model
        return MergeInput(reference.main, find(reference)[0].folder)

    def _require_base(self, workspace: Workspace) -> None:
        """Refuse a first model that has no base if the option `base` names none."""
        first_model = workspace.models(self.models[0].model)[0]
        if self.base is None and first_model.adapter is None:
            raise CheckpointError(
                f"'{first_model.name}' is a whole model; name the base that the result lies on under 'base'"
            )

    def _build_request(
        self,
        find: FindInputs,
        base: MergeInput,
        data: Callable[[FileRef], Path] | None = None,
        *,
        factors: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> MergeRequest:
        inputs = build_inputs(self.models, find, factors)
        request = MergeRequest(
            inputs=inputs,
            strategy=self.strategy,
            base=name_base(base, inputs),
            seed=seed,
            statistics=locate_statistics([self.strategy], data) if data is not None else {},
            template=base.folder if self.base is not None else None,
            as_adapter=True,
        )
        return request if request.uses_base else replace(request, base=None)


def _build_combination(strategy: Sequence[Stage]) -> Combination | None:
    """Return the factors of the models' changes if the strategy only adds up the changes, else None."""
    last_link = strategy[-1]
    if len(strategy) != 1 or not isinstance(last_link, Linear | TaskArithmetic):
        return None
    if isinstance(last_link, Linear) and not last_link.normalize:
        return None  # it changes the base's own share

    def shares(name: str, weights: Mapping[str, float], depth: float) -> Mapping[str, float]:
        scale = last_link.scale.at(name, depth) if isinstance(last_link, TaskArithmetic) else 1.0
        total = sum(weights.values()) if last_link.normalize else 1.0
        return {model: scale * weight / total for model, weight in weights.items()}

    return shares
