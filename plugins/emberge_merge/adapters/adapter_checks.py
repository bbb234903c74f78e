"""Checks that a merge's result can be an adapter on a base, from headers and configs; loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from emberge import Problem
from emberge.merging import (
    AdapterNames,
    MergeInput,
    MergePlan,
    TensorPlan,
    describe_base,
    read_adapter,
)
from emberge.model_folder import Checkpoint
from emberge.tensor_names import POOLER, Names, head_of

from emberge_merge.adapters.low_rank import Combination, LowRankProducts, Truncation


@dataclass(frozen=True)
class AdaptedClass:
    """The class that an adapter fits: its `prefix` before the names of the backbone, and peft's task type."""

    prefix: str = ""
    task: str | None = "FEATURE_EXTRACTION"
    remarks: tuple[str, ...] = ()

    @property
    def has_head(self) -> bool:
        """True for a class with a head, such as one for causal language models."""
        return bool(self.prefix) or self.task not in (None, "FEATURE_EXTRACTION")


def find_common_class(models: Iterable[MergeInput]) -> AdaptedClass:
    """Return the class that all adapters of a merge fit: that of each, or the backbone if they differ."""
    classes: dict[AdaptedClass, str] = {}
    for model in models:
        if model.folder is None or model.adapter is None:
            continue
        base, adapter = (
            Checkpoint(model.folder),
            read_adapter(Checkpoint(model.adapter).trunk, whole=False),
        )
        if adapter is None or not base.has_weights:
            continue
        names = AdapterNames(base.names, base, "", "")
        for name in (*adapter.whole_tensors, *(f"{module}.weight" for module in adapter.modules)):
            names.find_name(name)
        task = adapter.config.task or (None if names.prefix else AdaptedClass.task)
        classes.setdefault(AdaptedClass(names.prefix, task), model.name)
    if len(classes) < 2:
        return next(iter(classes), AdaptedClass())
    members = " and ".join(f"'{name}' for {one.task}" for one, name in classes.items())
    remark = f"{members}: adapters of different classes; the result fits the backbone (AutoModel)"
    return AdaptedClass(remarks=(remark,))


def find_adapter_problems(
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
        yield from _find_other_bases(plan, base, checkpoint)
    changes = list(_list_changes(plan, names))
    yield from _find_other_shapes(changes, names)
    for tensor in changes if truncation.rank is None else ():
        is_kept = products.is_product_change(tensor) or products.is_saved_whole(tensor)
        if len(tensor.out.shape) == 2 and not is_kept:
            why = "is no sum of products of thin factors"
            why += " (DoRA)" if combination is not None else ""
            yield Problem(f"its change {why}; give a rank to cut it to", tensor.name)
            return


def _find_other_shapes(changes: Sequence[TensorPlan], base: Names) -> Iterator[Problem]:
    for tensor in changes:
        own = base.specs.get(tensor.name)
        if own is None:
            yield Problem("the base lacks it, so an adapter cannot hold it", tensor.name)
        elif own.shape != tensor.out.shape:
            shapes = f"{list(tensor.out.shape)} and in the base {list(own.shape)}"
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
        if hashes[model.folder.resolve()] not in ("", own_hash):
            yield Problem(
                f"'{model.name}' lies on another base than '{base.name}'; only adapters of one base "
                "add up"
            )


def _hash_base(base: Checkpoint) -> str:
    (origin,) = describe_base(base).values()
    return str(origin["hash"])


def _list_changes(plan: MergePlan, base: Names) -> Iterator[TensorPlan]:
    """Yield the tensors that an adapter holds as changes; a head that the base lacks is kept whole."""
    trained_on, heads = find_common_class(plan.request.inputs), list_heads(plan, base)
    for tensor in plan.tensors:
        is_fresh_head = tensor.name in heads and tensor.name not in base.specs
        is_change = tensor.action == "merge" and not is_fresh_head
        if is_change and not is_left_out(tensor.name, plan, base, trained_on):
            yield tensor


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
