"""Comparisons of merges with the linear merge of the same members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emberge import Model
from emberge.evaluating import Comparison

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored


def linear_merges(models: Mapping[str, tuple[Scored, Model]]) -> dict[str, str]:
    """Map each merge to the linear merge of the same members with the same share of the base.

    Both merges must be scored at the same size of embeddings and under the same seed of the evaluation. If
    there are several linear merges (with other weights), the first one counts.
    """
    first: dict[object, str] = {}
    merges = {
        name: merge
        for name, (scored, model) in models.items()
        if (merge := _describe_merge(scored, model)) is not None
    }
    for name, (merge_key, method) in merges.items():
        if method == "linear":
            first.setdefault(merge_key, name)
    return {
        name: first[merge_key]
        for name, (merge_key, _) in merges.items()
        if merge_key in first and first[merge_key] != name
    }


def _describe_merge(scored: Scored, model: Model) -> tuple[object, Any] | None:
    """Return (key that comparable merges share, the last link's method); None if it is not a merge."""
    details = model.details
    strategy, members = details.get("strategy"), details.get("models")
    if not strategy or not isinstance(members, Mapping):
        return None
    method = strategy[0] if len(strategy) == 1 else strategy
    if isinstance(method, Mapping) and "keep_base" in method:
        method = method["keep_base"].get("by", "linear")
    merge_key = (frozenset(members.values()), details.get("keep"), scored.size, scored.drawn)
    return merge_key, method


def against_linear(
    judge: Judge, linear: Mapping[str, str], groups: Sequence[str], arms: Sequence[Arm] = ()
) -> Iterator[Comparison]:
    """Yield the comparison of each merge or arm with its linear merge on each group of tasks."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    pairs = {
        arm_of.get(merge, merge): arm_of.get(linear_merge, linear_merge)
        for merge, linear_merge in linear.items()
    }
    for on in groups:
        yield from (
            judge.compare(merge, linear_merge, on)
            for merge, linear_merge in pairs.items()
            if merge != linear_merge
        )
