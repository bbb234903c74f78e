"""Warnings of a plan that has no problems: weights, tokenizers; loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from emberge.contracts import MergeTransform, Stage
from emberge.merging.merge_plan import MergePlan, weights_of
from emberge.model_folder import Checkpoint, ModelPair
from emberge.wording import join_some


def plan_warnings(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    """Yield the warnings of a plan that has no problems; `checkpoints` are the folders that exist."""
    yield from _warn_of_weights(plan)
    if plan.template is not None:
        yield from _warn_of_tokens(plan, plan.template, checkpoints)


def _warn_of_weights(plan: MergePlan) -> Iterator[str]:
    if plan.request.weights_by:
        return
    least: dict[int, dict[str, float]] = {}
    for tensor in plan.tensors:
        if tensor.action == "merge":
            lowest = least.setdefault(plan.request.chain_of(tensor.name), {})
            for name, weight in weights_of(plan, tensor).items():
                lowest[name] = min(weight, lowest.get(name, weight))
    for number, weights in least.items():
        for link in _list_stages(plan, plan.request.chains[number]):
            yield from (
                f"'{link.name_in_messages}': {doubt}" for doubt in link.weight_warnings(weights)
            )


def _list_stages(plan: MergePlan, chain: tuple[Stage, ...]) -> Iterator[Stage]:
    """Yield the stages that receive the recipe's models with their given weights."""
    models = [m.name for m in plan.request.inputs]
    groups = [m.group for m in plan.request.inputs]
    for link in chain:
        yield link
        if isinstance(link, MergeTransform) and list(link.remaining(models, groups)) != models:
            return


def _warn_of_tokens(
    plan: MergePlan, template: Checkpoint, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[str]:
    tokenizer_folder = plan.request.tokenizer
    source = Checkpoint(tokenizer_folder) if tokenizer_folder is not None else template
    models: dict[str, list[str]] = {}
    for model in plan.request.inputs:
        other = checkpoints.get(model.name)
        if other is not None and other.folder != template.folder:
            for note in _compare_tokens(source, other):
                models.setdefault(note, []).append(f"'{model.name}'")
    for note, names in models.items():
        yield f"'{source.folder.name}' and {join_some(names)}: {note}; the first is kept"


def _compare_tokens(first: Checkpoint, second: Checkpoint) -> Iterable[str]:
    if ModelPair(first, second).same_tokenizer:
        return ()
    from emberge.merging.tokens.tokenizer import token_notes

    return token_notes(first, second)
