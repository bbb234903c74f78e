"""The weight that each model has in effect: over all tensors, and by layer; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emberge.contracts import MergeStrategy, MergeTransform, Stage
from emberge.merging.merge_plan import EffectiveWeight, MergePlan, TensorPlan, weights_of
from emberge.merging.request import MergeInput

__all__ = ["plan_effective_weights", "sums_of", "weighing"]


def plan_effective_weights(plan: MergePlan) -> tuple[dict[str, EffectiveWeight], float]:
    """Return (each model's effective weight, the mean sum of the weights as given); means are over elements.

    Where a strategy takes shares, a weight is divided by the sum over those it is merged with. Where one
    merges its result with the base, the base has a weight too, and the models what that leaves.
    """
    sums: dict[str, _Sum] = {m.name: _Sum() for m in plan.request.inputs}
    keeping = any(_base_share(chain) for chain in plan.request.chains)
    based = [plan.request.base.name] if plan.request.base is not None and keeping else []
    sums |= {name: _Sum() for name in based}
    total = elements = 0.0
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        given = weights_of(plan, tensor)
        for name, weight in effective_weights(plan, tensor, given).items():
            sums[name].add(plan.layers[tensor.name], weight, tensor.out.elements)
        for name in based:
            kept = _base_share(plan.request.chains[plan.request.chain_of(tensor.name)])
            sums[name].add(plan.layers[tensor.name], kept, tensor.out.elements)
        total += tensor.out.elements * sum(given.values())
        elements += tensor.out.elements
    return {n: one.share(elements) for n, one in sums.items()}, total / (elements or 1.0)


def effective_weights(
    plan: MergePlan, tensor: TensorPlan, given: Mapping[str, float]
) -> dict[str, float]:
    """Return the weights in effect for a tensor, of what the base leaves.

    They are as given, or divided by their sum over those merged.
    """
    chain = plan.request.chains[plan.request.chain_of(tensor.name)]
    link, labels = weighing(chain, [m for m in plan.request.inputs if m.name in given])
    if link.weight_role == "unused":
        return dict(given)
    left = 1.0 - _base_share(chain)
    sums = sums_of(given, labels) if link.weight_role == "share" else {}
    return {
        name: left * weight / (sums.get(labels[name], 1.0) or 1.0) for name, weight in given.items()
    }


def _base_share(chain: Sequence[Stage]) -> float:
    last = chain[-1]
    return last.base_share if isinstance(last, MergeStrategy) else 0.0


def sums_of(weights: Mapping[str, float], labels: Mapping[str, str]) -> dict[str, float]:
    """Return the sum of the weights under each label."""
    sums: dict[str, float] = {}
    for name, weight in weights.items():
        sums[labels[name]] = sums.get(labels[name], 0.0) + weight
    return sums


def weighing(chain: Sequence[Stage], inputs: Sequence[MergeInput]) -> tuple[Stage, dict[str, str]]:
    """Return (the link that the weights are for, each model's label); equal labels are merged together.

    It is the first link that makes one model of several, such as each group's, else the last.
    """
    models, groups = [m.name for m in inputs], [m.group for m in inputs]
    for link in chain:
        if isinstance(link, MergeTransform) and list(link.remaining(models, groups)) != models:
            return link, dict(zip(models, groups, strict=True))
    return chain[-1], dict.fromkeys(models, "")


class _Sum:
    """Adds up one model's weights: elements by weight by layer."""

    def __init__(self) -> None:
        self.layers: dict[str, dict[float, int]] = {}

    def add(self, layer: str, weight: float, elements: int) -> None:
        counts = self.layers.setdefault(layer, {})
        counts[weight] = counts.get(weight, 0) + elements

    def share(self, elements: float) -> EffectiveWeight:
        every = [(w, n) for counts in self.layers.values() for w, n in counts.items()]
        most = {
            layer: max(counts, key=lambda w: counts[w]) for layer, counts in self.layers.items()
        }
        common = sum(self.layers[layer][weight] for layer, weight in most.items())
        return EffectiveWeight(
            mean=sum(w * n for w, n in every) / (elements or 1.0),
            layers=most,
            mixed=1.0 - common / (sum(n for _, n in every) or 1),
            least=min((w for w, _ in every), default=0.0),
            largest=max((w for w, _ in every), default=0.0),
        )
