"""Merges against the linear merge of the same members: whether a method does more than average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emberge import Model
from emberge.evaluating import Comparison

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored

Models = Mapping[str, tuple[Scored, Model]]


def linear_merges(models: Models) -> dict[str, str]:
    """Return by merge the linear one of the same members, which keeps as much of the base.

    They must be scored at the same size of embeddings and the same seed of an evaluation. Of several linear
    merges, as with other weights, the first is what all are compared with.
    """
    first: dict[object, str] = {}
    merges = {name: found for name, one in models.items() if (found := _merge(*one)) is not None}
    for name, (place, method) in merges.items():
        if method == "linear":
            first.setdefault(place, name)
    return {
        name: first[place]
        for name, (place, _) in merges.items()
        if place in first and first[place] != name
    }


def _merge(scored: Scored, model: Model) -> tuple[object, Any] | None:
    """Return (members and all else that must be equal, the last link's method); None for no merge."""
    details = model.details
    strategy, members = details.get("strategy"), details.get("models")
    if not strategy or not isinstance(members, Mapping):
        return None
    method = strategy[0] if len(strategy) == 1 else strategy
    if isinstance(method, Mapping) and "keep_base" in method:
        method = method["keep_base"].get("by", "linear")
    place = (frozenset(members.values()), details.get("keep"), scored.size, scored.drawn)
    return place, method


def against_linear(
    judge: Judge, linear: Mapping[str, str], groups: Sequence[str], arms: Sequence[Arm] = ()
) -> Iterator[Comparison]:
    """Yield how each merge, or arm of them, compares with the linear one on groups of tasks."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    pairs = {arm_of.get(one, one): arm_of.get(other, other) for one, other in linear.items()}
    for on in groups:
        yield from (judge.compare(one, other, on) for one, other in pairs.items() if one != other)
