"""A planned merge: every tensor of the output, the models' weights, problems and warnings; loads no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from emberge.contracts import MergeStrategy, MergeTransform, Stage
from emberge.errors import CheckpointError, Problem
from emberge.merging.request import (
    MergeInput,
    MergeRequest,
    Resolver,
)
from emberge.model_folder import Checkpoint, JoinedFacts
from emberge.tensor_files import TensorSpec, main_dtype

if TYPE_CHECKING:
    from emberge.merging.tokens.token_plan import TokenPlan


_SHOWN_RANGES = 3
_MENTIONED_MIXED_SHARE = (
    0.05  # share of elements up to which another weight than their layer's is not mentioned
)
_NUMBERED = re.compile(r"(.*)\.(\d+)")


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
    padded: bool = False


@dataclass(frozen=True, slots=True)
class EffectiveWeight:
    """A model's effective weight: the mean over elements, and the most common value in each layer.

    `mixed_share` is the share of all elements whose weight differs from the most common weight in their
    layer; `least` and `largest` are over all tensors.
    """

    mean: float
    layers: Mapping[str, float] = field(default_factory=dict)
    mixed_share: float = 0.0
    least: float = 0.0
    largest: float = 0.0

    @property
    def variation(self) -> str:
        """A short description of how the weight varies over the layers; "" if it does not."""
        varied = len({_show_number(weight) for weight in self.layers.values()}) > 1
        if not varied:
            spread = f"{_show_number(self.least)} to {_show_number(self.largest)}"
            return f"{spread} by tensor" if self.mixed_share > _MENTIONED_MIXED_SHARE else ""
        ranges = list(_join_layer_ranges(self.layers))
        if len(ranges) <= _SHOWN_RANGES:
            return ", ".join(ranges)
        numbered = [
            (la, w) for la, w in sorted(self.layers.items(), key=_sort_layer) if _find_tower(la)
        ]
        weights = [weight for _, weight in numbered]
        if len({_find_tower(la) for la, _ in numbered}) == 1 and sorted(weights) in (
            weights,
            weights[::-1],
        ):
            (first, low), (last, high) = numbered[0], numbered[-1]
            return f"{_show_number(low)} in {first} to {_show_number(high)} in {last}"
        least, greatest = min(self.layers.values()), max(self.layers.values())
        return f"{_show_number(least)} to {_show_number(greatest)} by layer"


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """A merge planned from headers and configs alone: output tensors, problems and warnings.

    `weights` are each model's mean effective weight over elements (divided by the models' sum if a strategy
    uses shares), and `shares` are the same by layer. `weight_sum` is the mean sum of the recipe's weights.
    `future_models` names the models that do not exist yet. `omitted` maps each model of which only the text
    trunk is used to the names of its omitted tensors. `token_plan` is None if all tokenizers are equal byte
    for byte. `stated` are the facts of the members' other files.
    """

    request: MergeRequest
    tensors: tuple[TensorPlan, ...] = ()
    dropped: tuple[str, ...] = ()
    omitted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, EffectiveWeight] = field(default_factory=dict)
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
    def bytes(self) -> int:
        """Bytes of the weights of the result."""
        return sum(plan.out.nbytes for plan in self.tensors)

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
        return main_dtype(plan.out for plan in self.tensors)


def weights_of(plan: MergePlan, tensor: TensorPlan) -> dict[str, float]:
    """Return the recipe's weight of each model that has the tensor."""
    depth = plan.depths.get(tensor.name, 0.0)
    return {
        model.name: model.weight.at(tensor.out.name, depth)
        for model, spec in zip(plan.request.inputs, tensor.sources, strict=True)
        if spec is not None or model.name in plan.future_models
    }


def resolver(plan: MergePlan) -> Resolver:
    """Build the resolver that turns the stages' options into numbers for this merge."""
    stored_names = {tensor.name: tensor.out.name for tensor in plan.tensors}
    return Resolver({m.name: m.options for m in plan.request.inputs}, plan.depths, stored_names)


def raise_problems(plan: MergePlan) -> None:
    """Raise all problems of a plan as one error, if it has any.

    Raises:
        CheckpointError: if there are; the message has a line for each.
    """
    errors = [p for p in plan.problems if p.severity == "error"]
    if errors:
        raise CheckpointError("\n".join(str(problem) for problem in errors))


def _join_layer_ranges(layers: Mapping[str, float]) -> Iterator[str]:
    """Yield runs of neighbouring layers of equal weight: `embeddings 0`, `layers.0–11 0.5`."""
    runs: list[tuple[str, str, str]] = []
    for layer, weight in sorted(layers.items(), key=_sort_layer):
        weight_text = _show_number(weight)
        if (
            runs
            and runs[-1][2] == weight_text
            and _find_tower(runs[-1][1]) == _find_tower(layer) != ""
        ):
            runs[-1] = (runs[-1][0], layer, weight_text)
        else:
            runs.append((layer, layer, weight_text))
    for first, last, weight_text in runs:
        range_end = "" if first == last else f"–{last.rpartition('.')[2]}"
        yield f"{first}{range_end} {weight_text}"


def _sort_layer(entry: tuple[str, float]) -> tuple[bool, str, int]:
    layer, _ = entry
    match = _NUMBERED.fullmatch(layer)
    name, number = (match[1], int(match[2])) if match else (layer, 0)
    return layer != "embeddings", name, number


def _find_tower(layer: str) -> str:
    match = _NUMBERED.fullmatch(layer)
    return match[1] if match else ""


def _show_number(value: float) -> str:
    return f"{value:.3g}"


def plan_effective_weights(plan: MergePlan) -> tuple[dict[str, EffectiveWeight], float]:
    """Return each model's effective weight, and the sum of the recipe's weights: means over elements.

    If a strategy uses shares, a weight is divided by the sum over the models merged together. If a strategy
    merges its result with the base, the base has a weight too, and the models share the rest.
    """
    sums: dict[str, _WeightSum] = {m.name: _WeightSum() for m in plan.request.inputs}
    keeps_base = any(_find_base_share(chain) for chain in plan.request.chains)
    base_names = [plan.request.base.name] if plan.request.base is not None and keeps_base else []
    sums |= {name: _WeightSum() for name in base_names}
    total = elements = 0.0
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        recipe_weights = weights_of(plan, tensor)
        for name, weight in _compute_weights(plan, tensor, recipe_weights).items():
            sums[name].add(plan.layers[tensor.name], weight, tensor.out.elements)
        for name in base_names:
            base_share = _find_base_share(plan.request.chains[plan.request.chain_of(tensor.name)])
            sums[name].add(plan.layers[tensor.name], base_share, tensor.out.elements)
        total += tensor.out.elements * sum(recipe_weights.values())
        elements += tensor.out.elements
    return {n: one.share(elements) for n, one in sums.items()}, total / (elements or 1.0)


def _compute_weights(
    plan: MergePlan, tensor: TensorPlan, given: Mapping[str, float]
) -> dict[str, float]:
    """Return the models' effective weights for a tensor, scaled by the share that the base leaves.

    They are the recipe's weights, or these divided by their sum over the models merged together.
    """
    chain = plan.request.chains[plan.request.chain_of(tensor.name)]
    link, labels = find_weighing_link(chain, [m for m in plan.request.inputs if m.name in given])
    if link.weight_role == "unused":
        return dict(given)
    models_share = 1.0 - _find_base_share(chain)
    sums = sum_by_label(given, labels) if link.weight_role == "share" else {}
    return {
        name: models_share * weight / (sums.get(labels[name], 1.0) or 1.0)
        for name, weight in given.items()
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


class _WeightSum:
    """Counts of elements by layer and weight, for one model."""

    def __init__(self) -> None:
        self.layers: dict[str, dict[float, int]] = {}

    def add(self, layer: str, weight: float, elements: int) -> None:
        counts = self.layers.setdefault(layer, {})
        counts[weight] = counts.get(weight, 0) + elements

    def share(self, elements: float) -> EffectiveWeight:
        every = [(w, n) for counts in self.layers.values() for w, n in counts.items()]
        common_weights = {
            layer: max(counts, key=lambda w: counts[w]) for layer, counts in self.layers.items()
        }
        common_elements = sum(
            self.layers[layer][weight] for layer, weight in common_weights.items()
        )
        return EffectiveWeight(
            mean=sum(w * n for w, n in every) / (elements or 1.0),
            layers=common_weights,
            mixed_share=1.0 - common_elements / (sum(n for _, n in every) or 1),
            least=min((w for w, _ in every), default=0.0),
            largest=max((w for w, _ in every), default=0.0),
        )
