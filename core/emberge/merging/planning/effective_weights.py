"""What each model's weight comes to: over all tensors, and by layer; loads no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge.contracts.stage import MergeTransform, Stage

if TYPE_CHECKING:
    from emberge.merging.planning.match_tensors import TensorPlan
    from emberge.merging.planning.plan_merge import MergeInput, MergePlan

__all__ = ["EffectiveWeight", "plan_effective_weights", "sums_of", "weighing"]


_FEW = 3
_MIXED = 0.05  # elements that may have another weight than the rest of their layer without a word
_NUMBERED = re.compile(r"(.*)\.(\d+)")


@dataclass(frozen=True, slots=True)
class EffectiveWeight:
    """A model's effective weight: its mean by elements, and by layer what most of the layer's elements have.

    `mixed` is the share of all elements whose weight is another than that of most in their layer; `least`
    and `largest` are over all tensors.
    """

    mean: float
    layers: Mapping[str, float] = field(default_factory=dict)
    mixed: float = 0.0
    least: float = 0.0
    largest: float = 0.0

    @property
    def variation(self) -> str:
        """How it varies over layers, in a few words; nothing when it does not."""
        varied = len({_number(weight) for weight in self.layers.values()}) > 1
        if not varied:
            spread = f"{_number(self.least)} to {_number(self.largest)}"
            return f"{spread} by tensor" if self.mixed > _MIXED else ""
        ranges = list(_ranges(self.layers))
        if len(ranges) <= _FEW:
            return ", ".join(ranges)
        numbered = [(la, w) for la, w in sorted(self.layers.items(), key=_place) if _tower(la)]
        weights = [weight for _, weight in numbered]
        if len({_tower(la) for la, _ in numbered}) == 1 and sorted(weights) in (
            weights,
            weights[::-1],
        ):
            (first, low), (last, high) = numbered[0], numbered[-1]
            return f"{_number(low)} in {first} to {_number(high)} in {last}"
        return (
            f"{_number(min(self.layers.values()))} to {_number(max(self.layers.values()))} by layer"
        )


def plan_effective_weights(plan: MergePlan) -> tuple[dict[str, EffectiveWeight], float]:
    """(each model's share, the mean sum of the weights as given); means are by elements.

    Where a strategy takes shares, a weight is divided by the sum over those it is merged with.
    """
    from emberge.merging.planning.plan_merge import weights_of  # the two know each other

    sums: dict[str, _Sum] = {m.name: _Sum() for m in plan.request.inputs}
    total = elements = 0.0
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        given = weights_of(plan, tensor)
        for name, weight in effective_weights(plan, tensor, given).items():
            sums[name].add(plan.layers[tensor.name], weight, tensor.out.elements)
        total += tensor.out.elements * sum(given.values())
        elements += tensor.out.elements
    return {n: one.share(elements) for n, one in sums.items()}, total / (elements or 1.0)


def effective_weights(
    plan: MergePlan, tensor: TensorPlan, given: Mapping[str, float]
) -> dict[str, float]:
    """The weights that count for a tensor: as given, or divided by the sum over those it is merged with."""
    chain = plan.request.chains[plan.request.chain_of(tensor.name)]
    link, labels = weighing(chain, [m for m in plan.request.inputs if m.name in given])
    if link.weight_role != "share":
        return dict(given)
    sums = sums_of(given, labels)
    return {name: weight / (sums[labels[name]] or 1.0) for name, weight in given.items()}


def sums_of(weights: Mapping[str, float], labels: Mapping[str, str]) -> dict[str, float]:
    """The sum of the weights under each label."""
    sums: dict[str, float] = {}
    for name, weight in weights.items():
        sums[labels[name]] = sums.get(labels[name], 0.0) + weight
    return sums


def weighing(chain: Sequence[Stage], inputs: Sequence[MergeInput]) -> tuple[Stage, dict[str, str]]:
    """(the link that the models' weights are for, a label by model: those of one label are merged together).

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


def _ranges(layers: Mapping[str, float]) -> Iterator[str]:
    """Neighbouring layers of equal weight together: `embeddings 0`, `layers.0–11 0.5`."""
    runs: list[tuple[str, str, str]] = []
    for layer, weight in sorted(layers.items(), key=_place):
        shown = _number(weight)
        if runs and runs[-1][2] == shown and _tower(runs[-1][1]) == _tower(layer) != "":
            runs[-1] = (runs[-1][0], layer, shown)
        else:
            runs.append((layer, layer, shown))
    for first, last, shown in runs:
        end = "" if first == last else f"–{last.rpartition('.')[2]}"
        yield f"{first}{end} {shown}"


def _place(entry: tuple[str, float]) -> tuple[bool, str, int]:
    layer, _ = entry
    found = _NUMBERED.fullmatch(layer)
    name, number = (found[1], int(found[2])) if found else (layer, 0)
    return layer != "embeddings", name, number


def _tower(layer: str) -> str:
    found = _NUMBERED.fullmatch(layer)
    return found[1] if found else ""


def _number(value: float) -> str:
    return f"{value:.3g}"
