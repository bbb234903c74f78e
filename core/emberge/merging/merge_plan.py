"""A planned merge: every tensor of the output, the models' weights, problems and warnings; loads no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from emberge.contracts import MergeStrategy, MergeTransform, Stage
from emberge.errors import CheckpointError, Problem
from emberge.merging.chain import Resolver
from emberge.merging.request import FileState, MergeInput, MergeRequest
from emberge.model_folder import Checkpoint, JoinedFacts
from emberge.tensor_files import TensorSpec, find_main_dtype

if TYPE_CHECKING:
    from emberge.merging.tokens.token_plan import TokenPlan


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the output; `name` is its canonical name, `out` its stored name, shape and dtype.

    `sources` has one entry per model, None if the model lacks the tensor. For `copy`, `origin` is the tensor
    whose bytes are copied, and the sources are tensors whose bytes must equal it.
    """

    name: str
    out: TensorSpec
    action: Literal["merge", "copy"]
    sources: tuple[TensorSpec | None, ...]
    base: TensorSpec | None = None
    origin: TensorSpec | None = None


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """A merge planned from headers and configs alone: output tensors, problems and warnings.

    `weights` are each model's mean effective weight over elements (divided by the models' sum if a strategy
    uses shares), and `weight_ranges` are the least and the largest weight of a tensor. `weight_sum` is the
    mean sum of the recipe's weights. `future_models` names the models that do not exist yet. `omitted` maps
    each model whose text trunk alone is used to the names of its other tensors. `token_plan` is None
    if all tokenizers are equal byte for byte. `stated` are the facts of the members' other files.
    `files` are the models' files as they were when the plan was made.
    """

    request: MergeRequest
    files: Sequence[FileState] = ()
    tensors: tuple[TensorPlan, ...] = ()
    dropped: tuple[str, ...] = ()
    omitted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    weight_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    weight_sum: float = 0.0
    layers: Mapping[str, str] = field(default_factory=dict)
    depths: Mapping[str, float] = field(default_factory=dict)
    template: Checkpoint | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    future_models: frozenset[str] = frozenset()
    token_plan: TokenPlan | None = None
    stated: JoinedFacts = field(default_factory=JoinedFacts)

    @property
    def merged(self) -> list[str]:
        """Names of the tensors that are merged."""
        return [plan.out.name for plan in self.tensors if plan.action == "merge"]

    @property
    def copied(self) -> list[str]:
        """Names of the tensors that are copied unchanged."""
        return [plan.out.name for plan in self.tensors if plan.action == "copy"]

    @property
    def dtype(self) -> str:
        """The dtype of most of the merged bytes."""
        return find_main_dtype(plan.out for plan in self.tensors)

    def map_weights(self, tensor: TensorPlan) -> dict[str, float]:
        """Return the recipe's weight of each model that has the tensor."""
        depth = self.depths.get(tensor.name, 0.0)
        return {
            model.name: model.weight.at(tensor.out.name, depth)
            for model, spec in zip(self.request.inputs, tensor.sources, strict=True)
            if spec is not None or model.name in self.future_models
        }

    def build_resolver(self) -> Resolver:
        """Build the resolver that turns the stages' options into numbers for this merge."""
        stored_names = {tensor.name: tensor.out.name for tensor in self.tensors}
        options = {model.name: model.options for model in self.request.inputs}
        return Resolver(options, self.depths, stored_names)

    def raise_problems(self, others: Iterable[Problem] = ()) -> None:
        """Raise the plan's problems and `others` as one error with a line for each, if there are any.

        Raises:
            CheckpointError: if there are.
        """
        problems = (*self.problems, *others)
        errors = [str(problem) for problem in problems if problem.severity == "error"]
        if errors:
            raise CheckpointError("\n".join(errors))


def add_effective_weights(plan: MergePlan) -> MergePlan:
    """Return the plan with each model's effective weights, and the recipe's sum as a mean over elements.

    If a strategy uses shares, a weight is divided by the sum over the models merged together. If a strategy
    merges its result with the base, the base has a weight too, and the models share the rest.
    """
    # For each model, the numbers of elements by weight.
    counts: dict[str, Counter[float]] = {m.name: Counter() for m in plan.request.inputs}
    base = plan.request.base if any(map(_find_base_share, plan.request.chains)) else None
    if base is not None:
        counts[base.name] = Counter()
    total = elements = 0.0
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        recipe_weights, size = plan.map_weights(tensor), tensor.out.elements
        for name, weight in _compute_weights(plan, tensor, recipe_weights).items():
            counts[name][weight] += size
        if base is not None:
            share = _find_base_share(plan.request.chains[plan.request.find_chain(tensor.name)])
            counts[base.name][share] += size
        total += size * sum(recipe_weights.values())
        elements += size
    elements = elements or 1.0
    return replace(
        plan,
        weights={n: sum(w * count for w, count in c.items()) / elements for n, c in counts.items()},
        weight_ranges={n: (min(c, default=0.0), max(c, default=0.0)) for n, c in counts.items()},
        weight_sum=total / elements,
    )


def _compute_weights(
    plan: MergePlan, tensor: TensorPlan, recipe_weights: Mapping[str, float]
) -> dict[str, float]:
    """Return the models' effective weights for a tensor, scaled by the share that the base leaves.

    They are the recipe's weights, or these divided by their sum over the models merged together.
    """
    chain = plan.request.chains[plan.request.find_chain(tensor.name)]
    link, labels = find_weighing_link(
        chain, [m for m in plan.request.inputs if m.name in recipe_weights]
    )
    if link.weight_role == "unused":
        return dict(recipe_weights)
    models_share = 1.0 - _find_base_share(chain)
    sums = sum_by_label(recipe_weights, labels) if link.weight_role == "share" else {}
    return {
        name: models_share * weight / (sums.get(labels[name], 1.0) or 1.0)
        for name, weight in recipe_weights.items()
    }


def _find_base_share(chain: Sequence[Stage]) -> float:
    last = chain[-1]
    return last.base_share if isinstance(last, MergeStrategy) else 0.0


def sum_by_label(weights: Mapping[str, float], labels: Mapping[str, str]) -> dict[str, float]:
    """Return the sum of the weights under each label."""
    sums: dict[str, float] = {}
    for name, weight in weights.items():
        sums[labels[name]] = sums.get(labels[name], 0.0) + weight
    return sums


def find_weighing_link(
    chain: Sequence[Stage], inputs: Sequence[MergeInput]
) -> tuple[Stage, dict[str, str]]:
    """Return the link that uses the weights, and each model's label; equal labels are merged together.

    The link is the first that merges several models into one (such as those of a group), else the last.
    """
    models, groups = [m.name for m in inputs], [m.group for m in inputs]
    for link in chain:
        if isinstance(link, MergeTransform) and list(link.remaining(models, groups)) != models:
            return link, dict(zip(models, groups, strict=True))
    return chain[-1], dict.fromkeys(models, "")
