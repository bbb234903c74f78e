"""Members as inputs of a merge, and what keeps them from being merged by weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emberge import CheckpointError, Model, PerTensor, Stage
from emberge.merging import MergeInput, MergePlan, MergeRequest, plan_merge


def member_inputs(
    models: Sequence[Model], weights: Sequence[float | PerTensor]
) -> list[MergeInput]:
    """Return the models that have a weight as inputs of a merge; one by tensor is always one."""
    return [
        MergeInput(
            f"{model.name} ({number})",
            model.folder,
            weight=PerTensor(weight) if isinstance(weight, float) else weight,
            fingerprint=model.fingerprint,
            adapter=model.adapter,
        )
        for number, (model, weight) in enumerate(zip(models, weights, strict=True), 1)
        if not isinstance(weight, float) or weight > 0
    ]


def plan_of(inputs: Sequence[MergeInput], strategy: Stage) -> MergePlan:
    """Return the plan of a merge, from headers and configs."""
    return plan_merge(MergeRequest(inputs=tuple(inputs), strategy=(strategy,)))


def plan_problems(plan: MergePlan) -> Iterator[str]:
    """Yield reasons why members cannot be merged, or why their ensemble foretells no merge."""
    yield from (str(problem) for problem in plan.problems)
    if plan.tokens is not None:
        yield (
            "the models' tokenizers differ, so that a text is other tokens to each and their ensemble "
            "foretells no merge; take models of one tokenizer"
        )


def plan_members(models: Sequence[Model], strategy: Stage) -> MergePlan:
    """Return the plan of a merge of members, all of which are there.

    Raises:
        CheckpointError: for fewer than two, the same twice, and models that do not fit each other.
    """
    if len(models) < 2:
        raise CheckpointError("weights need two models, or one and its base")
    seen: dict[str, str] = {}
    for model in models:
        if model.fingerprint in seen:
            raise CheckpointError(
                f"'{seen[model.fingerprint]}' and '{model.name}' are the same model; name it once"
            )
        seen[model.fingerprint] = model.name
    plan = plan_of(member_inputs(models, [1.0] * len(models)), strategy)
    for fault in plan_problems(plan):
        raise CheckpointError(fault)
    return plan
