"""Checks that a merge's result can be an adapter on a base, from headers and configs; loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from emberge.errors import Problem
from emberge.merging.adapter_config import origin_hash
from emberge.merging.adapter_output.low_rank import Combination, LowRankProducts, Truncation
from emberge.merging.compare_adapters import AdaptedClass, common_class
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.request import MergeInput
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import POOLER, Names, head_of


def adapter_problems(
    plan: MergePlan,
    base: MergeInput,
    truncation: Truncation,
    combination: Combination | None = None,
) -> Iterator[Problem]:
    """Yield the reasons why a merge's result cannot be an adapter on the base, from headers and configs."""
    if base.folder is None or not plan.tensors:
        return
    checkpoint = Checkpoint(base.folder)
    if not checkpoint.has_weights:
        return
    names = checkpoint.names
    products = LowRankProducts(plan, names, combination, truncation)
    if combination is not None:
        yield from _check_other_bases(plan, base, origin_hash(names, checkpoint))
    merged = list(_list_changes(plan, names))
    for tensor in merged:
        if fault := _find_shape_fault(tensor, names.specs.get(tensor.name)):
            yield Problem(fault, tensor.name)
    for tensor in merged if products.exact else ():
        if (
            len(tensor.out.shape) == 2
            and not products.is_product_change(tensor)
            and not products.is_saved_whole(tensor)
        ):
            why = "is no sum of products of thin factors" + (
                " (DoRA or trained tokens)" * (combination is not None)
            )
            yield Problem(f"its change {why}; give a rank to cut it to", tensor.name)
            return


def _list_changes(plan: MergePlan, base: Names) -> Iterator[TensorPlan]:
    """Yield the tensors that an adapter holds as changes; a head that the base lacks is kept whole."""
    trained_on, heads = common_class(plan.request.inputs), list_heads(plan, base)
    for tensor in plan.tensors:
        is_fresh_head = tensor.name in heads and tensor.name not in base.specs
        is_change = tensor.action == "merge" and not is_fresh_head
        if is_change and not is_left_out(tensor.name, plan, base, trained_on):
            yield tensor


def _find_shape_fault(tensor: TensorPlan, own: TensorSpec | None) -> str | None:
    if own is None:
        return "the base lacks it, so an adapter cannot hold it"
    if own.shape != tensor.out.shape:
        shapes = f"{list(tensor.out.shape)} and in the base {list(own.shape)}"
        return f"its shape is {shapes}; an adapter changes none"
    return None


def _check_other_bases(plan: MergePlan, base: MergeInput, ours: str) -> Iterator[Problem]:
    checked_folders = {base.folder.resolve() if base.folder else Path()}
    for model in plan.request.inputs:
        if (
            model.folder is None
            or model.adapter is None
            or model.folder.resolve() in checked_folders
        ):
            continue
        checked_folders.add(model.folder.resolve())
        checkpoint = Checkpoint(model.folder)
        if checkpoint.has_weights and origin_hash(checkpoint.names, checkpoint) != ours:
            yield Problem(
                f"'{model.name}' lies on another base than '{base.name}'; only adapters of one base add up"
            )


def is_left_out(name: str, plan: MergePlan, base: Names, trained_on: AdaptedClass) -> bool:
    """Return whether an adapter of the class has no place for a tensor: one of a head that it lacks.

    A class without a head has the base's pooler, if there is one.
    """
    if trained_on.has_head or name not in list_heads(plan, base):
        return False
    return head_of(name) != POOLER or name not in base.specs


def list_heads(plan: MergePlan, base: Names) -> frozenset[str]:
    """Return the names of all tensors in heads of the base or of the result."""
    assert plan.template is not None
    return base.heads | plan.template.names.heads
