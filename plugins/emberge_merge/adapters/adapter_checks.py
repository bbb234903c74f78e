"""Checks that a merge's result can be an adapter on a base, from headers and configs; loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emberge import Problem
from emberge.merging import MergeInput, MergePlan, TensorPlan, describe_base
from emberge.model_folder import ADAPTER_CONFIG, Checkpoint, read_object_if_any
from emberge.tensor_names import POOLER, TensorNames, find_head

from emberge_merge.adapters.low_rank import Combination, Truncation
from emberge_merge.adapters.low_rank_products import LowRankProducts


def find_adapter_problems(
    plan: MergePlan,
    base: MergeInput,
    truncation: Truncation,
    combination: Combination | None = None,
) -> Iterator[Problem]:
    """Yield the reasons why a merge's result cannot be an adapter on the base, from headers and configs."""
    if base.adapter is not None:
        yield Problem(f"'{base.name}' is an adapter; the base must be a whole model")
        return
    if base.folder is None or not plan.tensors:
        return
    checkpoint = Checkpoint(base.folder)
    if not checkpoint.has_weights:
        return
    names = checkpoint.tensor_names
    products = LowRankProducts(plan, names, combination, truncation)
    if combination is not None:
        yield from _find_other_bases(plan, base, checkpoint)
    changes = list(_list_changes(plan, names))
    yield from _find_other_shapes(changes, names)
    for tensor in changes if truncation.rank is None else ():
        is_kept = products.is_product_change(tensor) or products.is_saved_whole(tensor)
        if len(tensor.result.shape) == 2 and not is_kept:
            why = "is no sum of products of thin factors"
            why += " (DoRA)" if combination is not None else ""
            yield Problem(f"its change {why}; give a rank to cut it to", tensor.name)
            return


def describe_language_adapters(plan: MergePlan) -> Iterator[str]:
    """Yield a sentence for each adapter of a language model with its head, which the result does not fit."""
    for model in plan.request.inputs:
        if model.adapter is None:
            continue
        config = read_object_if_any(Checkpoint(model.adapter).trunk / ADAPTER_CONFIG)
        if (task := config.get("task_type")) in ("CAUSAL_LM", "SEQ_2_SEQ_LM"):
            yield (
                f"'{model.name}' is an adapter of type {task}, and the result is one of the model without "
                "its head: it fits AutoModel, and changes nothing on a causal model"
            )


def _find_other_shapes(changes: Sequence[TensorPlan], base: TensorNames) -> Iterator[Problem]:
    for tensor in changes:
        base_spec = base.specs.get(tensor.name)
        if base_spec is None:
            yield Problem("the base lacks it, so an adapter cannot hold it", tensor.name)
        elif base_spec.shape != tensor.result.shape:
            shapes = f"{list(tensor.result.shape)} and in the base {list(base_spec.shape)}"
            yield Problem(f"its shape is {shapes}; an adapter changes none", tensor.name)


def _find_other_bases(
    plan: MergePlan, base: MergeInput, checkpoint: Checkpoint
) -> Iterator[Problem]:
    """Yield a problem for each adapter whose base has other weights than `base`."""
    own_hash = _hash_base(checkpoint)
    hashes = {checkpoint.folder.resolve(): own_hash}
    for model in plan.request.inputs:
        if model.folder is None or model.adapter is None or model.folder.resolve() in hashes:
            continue
        other = Checkpoint(model.folder)
        hashes[model.folder.resolve()] = _hash_base(other) if other.has_weights else ""
        if own_hash and hashes[model.folder.resolve()] not in ("", own_hash):
            yield Problem(
                f"'{model.name}' lies on another base than '{base.name}'; only adapters of one base "
                "add up"
            )


def _hash_base(base: Checkpoint) -> str:
    (origin,) = describe_base(base).values()
    return str(origin["hash"] or "")  # none for weights on a server


def _list_changes(plan: MergePlan, base: TensorNames) -> Iterator[TensorPlan]:
    """Yield the tensors that an adapter contains as changes."""
    for tensor in plan.tensors:
        if tensor.action == "merge" and not is_left_out(tensor.name, plan, base):
            yield tensor


def is_left_out(name: str, plan: MergePlan, base: TensorNames) -> bool:
    """Return whether a tensor belongs to a head, which an adapter of the backbone has no place for.

    A pooler that the base has is part of its backbone.
    """
    assert plan.template is not None
    if name not in base.heads | plan.template.tensor_names.heads:
        return False
    return find_head(name) != POOLER or name not in base.specs
