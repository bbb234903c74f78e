"""A planned merge: every tensor of the output, the models' weights, problems and warnings; loads no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from emberge.contracts import MergeStrategy, MergeTransform, Stage
from emberge.errors import CheckpointError, Problem
from emberge.merging.request import FileState, MergeInput, MergeRequest
from emberge.model_folder import Checkpoint, JoinedFacts
from emberge.tensor_files import TensorSpec, find_main_dtype

if TYPE_CHECKING:
    from emberge.merging.tokens.token_plan import TokenPlan


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the output; `name` is its canonical name, `result` its stored name, shape and dtype.

    `sources` has one entry per model, None if the model lacks the tensor. For `copy`, `origin` is the tensor
    whose bytes are copied, and the sources are tensors whose bytes must equal it.
    """

    name: str
    result: TensorSpec
    action: Literal["merge", "copy"]
    sources: tuple[TensorSpec | None, ...]
    base: TensorSpec | None = None
    origin: TensorSpec | None = None


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """A merge planned from headers and configs alone: output tensors, problems and warnings."""

    request: MergeRequest
    files: Sequence[FileState] = ()
    """The states of the models' files when the plan was made."""
    tensors: tuple[TensorPlan, ...] = ()
    dropped: tuple[str, ...] = ()
    """Canonical names of tensors that the result leaves out."""
    omitted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each model whose text trunk alone is used, the names of its other tensors."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Each model's mean effective weight over elements, which is a share if a strategy uses shares."""
    weight_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Each model's least and largest effective weight in a tensor."""
    weight_sum: float = 0.0
    """The mean sum of the recipe's weights over elements."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Each tensor's layer, by canonical name."""
    depths: Mapping[str, float] = field(default_factory=dict)
    """Each tensor's depth from 0 (first layer) to 1 (last), by canonical name."""
    template: Checkpoint | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    future_models: frozenset[str] = frozenset()
    """Names of models and base whose weights do not exist yet."""
    token_plan: TokenPlan | None = None
    """The rows of different tokenizers; None if all tokenizers are equal byte for byte."""
    joined_facts: JoinedFacts = field(default_factory=JoinedFacts)
    """The facts of the members' other files."""

    @property
    def merged(self) -> list[str]:
        """Stored names of the tensors that are merged."""
        return [tensor.result.name for tensor in self.tensors if tensor.action == "merge"]

    @property
    def copied(self) -> list[str]:
        """Stored names of the tensors that are copied unchanged."""
        return [tensor.result.name for tensor in self.tensors if tensor.action == "copy"]

    @property
    def dtype(self) -> str:
        """The dtype of most of the merged bytes."""
        return find_main_dtype(tensor.result for tensor in self.tensors)

    def map_weights(self, tensor: TensorPlan) -> dict[str, float]:
        """Return the recipe's weight of each model that has the tensor."""
        depth = self.depths.get(tensor.name, 0.0)
        return {
            model.name: model.weight.at(tensor.result.name, depth)
            for model, spec in zip(self.request.inputs, tensor.sources, strict=True)
            if spec is not None or model.name in self.future_models
        }

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

    If a strategy uses shares, a weight is divided by the sum over the models merged together, and a sum of
    zero becomes a problem of the plan. If a strategy merges its result with the base, the base has a weight
    too, and the models share the rest.
    """
    request, base = plan.request, plan.request.base
    strategies = [chain[-1] for chain in request.chains]
    base_shares = [s.base_share if isinstance(s, MergeStrategy) else 0.0 for s in strategies]
    # For each model, the numbers of elements by weight.
    counts: dict[str, Counter[float]] = {m.name: Counter() for m in request.inputs}
    if base is not None and any(base_shares):
        counts[base.name] = Counter()
    total = elements = 0.0
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        number, size = request.find_chain_number(tensor.result.name), tensor.result.elements
        recipe_weights = plan.map_weights(tensor)
        try:
            weights = _compute_weights(request, number, recipe_weights, 1.0 - base_shares[number])
        except ValueError as error:
            return replace(plan, problems=(*plan.problems, Problem(str(error), tensor.name)))
        for name, weight in weights.items():
            counts[name][weight] += size
        if base is not None and base.name in counts:
            counts[base.name][base_shares[number]] += size
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
    request: MergeRequest, number: int, recipe_weights: Mapping[str, float], models_share: float
) -> dict[str, float]:
    """Return the models' effective weights for the tensors of a chain, given the recipe's weights.

    Raises:
        ValueError: if weights by whose sum a link divides sum to zero.
    """
    inputs = [model for model in request.inputs if model.name in recipe_weights]
    link, labels = find_weighing_link(request.chains[number], inputs)
    if link.weight_role == "unused":
        return dict(recipe_weights)
    if link.weight_role == "scale":
        return {name: models_share * weight for name, weight in recipe_weights.items()}
    sums: dict[str, float] = {}
    for name, weight in recipe_weights.items():
        sums[labels[name]] = sums.get(labels[name], 0.0) + weight
    for label, weight_sum in sums.items():
        if abs(weight_sum) < 1e-12:
            where = f" in the group '{label}'" if label else ""
            raise ValueError(
                f"the weights sum to zero{where}, and '{link.name_in_messages}' divides by their sum; give "
                "weights that do not cancel out"
            )
    return {
        name: models_share * weight / sums[labels[name]] for name, weight in recipe_weights.items()
    }


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
