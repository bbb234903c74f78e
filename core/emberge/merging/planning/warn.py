"""Warnings of a plan without problems: weights, equal models, tokenizers, licences; loads no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from emberge.contracts import MergeTransform, Stage
from emberge.merging.merge_plan import MergePlan, weights_of
from emberge.merging.planning.compare_layers import changes_alike, far_layers
from emberge.merging.request import MergeRequest
from emberge.model_folder import (
    Checkpoint,
    ModelPair,
    doubts_of_licences,
    licence_of,
)
from emberge.tensor_files import TensorSpec
from emberge.wording import join_some

_BASE = "the base"
# Bytes looked at in each of three places of a tensor; what is smaller than that is seen whole. Even where
# most numbers round to the same bfloat16, a few thousand in a row do not.
_LOOK = 4096


@dataclass(frozen=True, slots=True)
class PlanWarnings:
    """Warnings, whether models differ in nothing beside their weights, and the licence of each parent."""

    warnings: tuple[str, ...]
    alike: bool
    licences: Mapping[str, str | None]
    changes: tuple[float, ...] = ()
    """Cosines of models' changes from the base, pair by pair."""


def plan_warnings(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> PlanWarnings:
    """Collect the warnings of a plan without problems; `checkpoints` are the folders that exist."""
    licences = _licences(plan.request, checkpoints)
    warnings = (
        *_weights(plan),
        *_duplicate_models(plan),
        *_far_layers(plan),
        *_tokens(plan, checkpoints),
        *doubts_of_licences(licences),
    )
    return PlanWarnings(warnings, _alike(plan, checkpoints), licences, _changes(plan))


def _weights(plan: MergePlan) -> Iterator[str]:
    least: dict[int, dict[str, float]] = {}
    for tensor in plan.tensors:
        if tensor.action == "merge":
            lowest = least.setdefault(plan.request.chain_of(tensor.name), {})
            for name, weight in weights_of(plan, tensor).items():
                lowest[name] = min(weight, lowest.get(name, weight))
    for number, weights in least.items():
        for link in _weighted(plan, plan.request.chains[number]):
            yield from (
                f"'{link.name_in_recipes}': {doubt}" for doubt in link.weight_warnings(weights)
            )


def _weighted(plan: MergePlan, chain: tuple[Stage, ...]) -> Iterator[Stage]:
    """Yield the links that see the models of the recipe, with the weights that it gives them."""
    models = [m.name for m in plan.request.inputs]
    groups = [m.group for m in plan.request.inputs]
    for link in chain:
        yield link
        if isinstance(link, MergeTransform) and list(link.remaining(models, groups)) != models:
            return


def _others(
    plan: MergePlan, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[tuple[str, Checkpoint]]:
    """Yield the models beside the template that exist, by name."""
    for model in plan.request.inputs:
        other = checkpoints.get(model.name)
        if other is not None and plan.template is not None and other.folder != plan.template.folder:
            yield model.name, other


def _tokens(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    if plan.template is None:
        return
    chosen = plan.request.tokenizer
    kept = Checkpoint(chosen) if chosen is not None else plan.template
    models: dict[str, list[str]] = {}
    for name, other in _others(plan, checkpoints):
        for note in _token_notes(kept, other):
            models.setdefault(note, []).append(f"'{name}'")
    for note, names in models.items():
        yield f"'{kept.folder.name}' and {join_some(names)}: {note}; the first is kept"


def _token_notes(first: Checkpoint, second: Checkpoint) -> Iterable[str]:
    if ModelPair(first, second).same_tokenizer:
        return ()
    from emberge.merging.tokens.tokenizer import token_notes

    return token_notes(first, second)


def _alike(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> bool:
    template = plan.template
    if any(model.part == "text" for model in plan.request.inputs):
        return False  # what else is in their folders was not compared
    return template is not None and not any(
        True
        for pair in (ModelPair(template, other) for _, other in _others(plan, checkpoints))
        for _ in (
            *pair.choices(),
            *pair.smaller_differences(),
            *_token_notes(template, pair.second),
        )
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


def _duplicate_models(plan: MergePlan) -> Iterator[str]:
    """Yield warnings of models that count twice, and of those that are equal to the base.

    Groups may share a model: a checkpoint that is among the best for two tasks is in both soups.
    """
    columns = _columns(plan)
    groups = {model.name: model.group for model in plan.request.inputs}
    with _OpenFiles() as files:
        for first, second in combinations(columns, 2):
            apart = first != _BASE and groups[first] != groups[second]
            if not apart and _all_equal(columns[first], columns[second], files):
                yield _same_weights(first, second)


def _far_layers(plan: MergePlan) -> Iterator[str]:
    """Yield warnings of models whose layers are far from the first model's; slices may mix their places."""
    if plan.request.part is None:
        with _OpenFiles() as files:
            yield from far_layers(plan, files.read)


def _changes(plan: MergePlan) -> tuple[float, ...]:
    """Return the cosines of models' changes from the base; slices may mix places."""
    if plan.request.base is None or plan.request.part is not None:
        return ()
    with _OpenFiles() as files:
        return changes_alike(plan, files.read)


def _same_weights(first: str, second: str) -> str:
    if first == _BASE:
        return (
            f"'{second}' holds the same weights as the base, so that its changes are all zero; take it "
            "out unless you mean that"
        )
    same = f"'{first}' and '{second}' hold the same weights"
    return f"{same}, which count twice; take one out unless you mean that"


def _columns(plan: MergePlan) -> dict[str, list[TensorSpec]]:
    """Return the merged tensors of the base and of each model whose files have them as they are."""
    merged = [tensor for tensor in plan.tensors if tensor.action == "merge"]
    named = {m.name: [t.sources[i] for t in merged] for i, m in enumerate(plan.request.inputs)}
    every = {_BASE: [tensor.base for tensor in merged], **named}
    return {
        name: [spec for spec in specs if spec is not None]
        for name, specs in every.items()
        if specs and all(spec is not None and type(spec) is TensorSpec for spec in specs)
    }


def _all_equal(
    first: Sequence[TensorSpec], second: Sequence[TensorSpec], files: _OpenFiles
) -> bool:
    return all(
        a.shape == b.shape and a.dtype == b.dtype and files.same(a, b)
        for a, b in zip(first, second, strict=True)
    )


class _OpenFiles(ExitStack):
    """Files that stay open while places in them are compared."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Path, int] = {}

    def same(self, first: TensorSpec, second: TensorSpec) -> bool:
        one, other = self._handle(first.file), self._handle(second.file)
        if os.path.sameopenfile(one, other) and first.offset == second.offset:
            return True
        size = min(_LOOK, first.nbytes)
        return all(
            os.pread(one, size, first.offset + at) == os.pread(other, size, second.offset + at)
            for at in dict.fromkeys((0, (first.nbytes - size) // 2, first.nbytes - size))
        )

    def read(self, path: Path, start: int, size: int) -> bytes:
        """Return bytes of a file."""
        return os.pread(self._handle(path), size, start)

    def _handle(self, path: Path) -> int:
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
            self.callback(os.close, self._open[path])
        return self._open[path]
