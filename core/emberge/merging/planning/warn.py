"""What is worth a second thought before a merge that could be done: weights, twins, tokenizers, licences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge.contracts.stage import MergeTransform, Stage
from emberge.merging.planning.twins import duplicate_models
from emberge.merging.stage_options import stage_name
from emberge.merging.tokens.token_names import token_notes
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.compare_models import differences, notes
from emberge.model_folder.licences import doubts_of_licences, licence_of
from emberge.wording import join_some

if TYPE_CHECKING:
    from emberge.merging.planning.plan_merge import MergePlan, MergeRequest

__all__ = ["PlanWarnings", "plan_warnings"]


@dataclass(frozen=True, slots=True)
class PlanWarnings:
    """Warnings, whether models differ in nothing beside their weights, and the licence of each parent."""

    warnings: tuple[str, ...]
    alike: bool
    licences: Mapping[str, str | None]


def plan_warnings(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> PlanWarnings:
    """Think twice about a plan without problems; `checkpoints` are the folders that could be seen."""
    licences = _licences(plan.request, checkpoints)
    warnings = (
        *_weights(plan),
        *duplicate_models(plan),
        *_tokens(plan, checkpoints),
        *doubts_of_licences(licences),
    )
    return PlanWarnings(warnings, _alike(plan, checkpoints), licences)


def _weights(plan: MergePlan) -> Iterator[str]:
    from emberge.merging.planning.plan_merge import weights_of  # the two know each other

    least: dict[int, dict[str, float]] = {}
    for tensor in plan.tensors:
        if tensor.action == "merge":
            lowest = least.setdefault(plan.request.chain_of(tensor.name), {})
            for name, weight in weights_of(plan, tensor).items():
                lowest[name] = min(weight, lowest.get(name, weight))
    for number, weights in least.items():
        for link in _weighted(plan, plan.request.chains[number]):
            yield from (f"'{stage_name(link)}': {doubt}" for doubt in link.weight_warnings(weights))


def _weighted(plan: MergePlan, chain: tuple[Stage, ...]) -> Iterator[Stage]:
    """The links that see the models of the recipe, with the weights that it gives them."""
    models = [m.name for m in plan.request.inputs]
    groups = [m.group for m in plan.request.inputs]
    for link in chain:
        yield link
        if isinstance(link, MergeTransform) and list(link.remaining(models, groups)) != models:
            return


def _others(
    plan: MergePlan, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[tuple[str, Checkpoint]]:
    """The models beside the template that could be seen."""
    for model in plan.request.inputs:
        other = checkpoints.get(model.name)
        if other is not None and plan.template is not None and other.folder != plan.template.folder:
            yield model.name, other


def _tokens(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    if plan.template is None:
        return
    chosen = plan.request.tokenizer
    kept = Checkpoint(chosen) if chosen is not None else plan.template
    said: dict[str, list[str]] = {}
    for name, other in _others(plan, checkpoints):
        for note in token_notes(kept, other):
            said.setdefault(note, []).append(f"'{name}'")
    for note, names in said.items():
        yield f"'{kept.folder.name}' and {join_some(names)}: {note}; the first is kept"


def _alike(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> bool:
    template = plan.template
    return template is not None and not any(
        True
        for _, other in _others(plan, checkpoints)
        for compare in (differences, notes, token_notes)
        for _ in compare(template, other)
    )


def _licences(
    request: MergeRequest, checkpoints: Mapping[str, Checkpoint]
) -> dict[str, str | None]:
    models = [*request.inputs, *([request.base] if request.base is not None else [])]
    found: dict[str, str | None] = {}
    for model in models:
        if model.name in checkpoints:
            folder = checkpoints[model.name].folder
            stated = [licence_of(place) for place in (folder, model.adapter) if place is not None]
            found[model.name] = ", ".join(dict.fromkeys(one for one in stated if one)) or None
    return found
