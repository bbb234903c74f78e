"""Options of the steps that merge, and the models that they name as inputs of a merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from emberge import (
    CheckpointError,
    FileRef,
    MergeStrategy,
    Model,
    ModelRef,
    PerModel,
    PerTensor,
    Preflight,
    Problem,
    Stage,
    TensorRef,
    Workspace,
)
from emberge.contracts import list_statistics_files, walk_stages
from emberge.merging import MergeInput, ModelPart
from emberge.results import read_artifact

from emberge_merge.methods.keep_base import KeepBase
from emberge_merge.steps.found_weights import FoundWeights

Weights = Literal["equal", "size"]


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model of a merge.

    `weight` is a number, a list over depth, or `[{filter, value}]`. `group` is the model's label for staged
    fusion. `options` are the model's own numbers for the strategy's links: `{trim: {density: 0.7}}`. With
    `part: text`, only the model's text trunk is used, whatever class contains it: vision, speech, a
    classifier. Towers, projectors and heads are left out, and of the model's configs only the trunk's has to
    fit.
    """

    model: TensorRef
    part: ModelPart = "whole"
    weight: PerTensor = field(default_factory=lambda: PerTensor(1.0))
    group: str = ""
    name: str | None = None
    options: dict[str, dict[str, PerModel]] = field(default_factory=dict)


# Returns the inputs that a reference names: one, or several for the checkpoints of a training.
FindInputs = Callable[[ModelRef], Sequence[MergeInput]]


def find_in_check(
    context: Preflight, reference: ModelRef, *, tokenizer: ModelRef | None = None
) -> Sequence[MergeInput]:
    """Return the input that a reference names in a check, without a folder if it does not exist yet.

    The folder of the `tokenizer` needs no weights.
    """
    folder = context.model(reference, weights=reference is not tokenizer)
    return [MergeInput(context.name(reference), folder, adapter=context.adapter(reference))]


def find_in_run(workspace: Workspace, reference: ModelRef) -> Sequence[MergeInput]:
    """Return the inputs that a reference names in a run."""
    return [
        MergeInput(m.name, m.folder, fingerprint=m.fingerprint, adapter=m.adapter)
        for m in workspace.models(reference)
    ]


def find_one_input(find: FindInputs, reference: ModelRef) -> MergeInput:
    """Return the one input that a reference names.

    Raises:
        CheckpointError: if it names several.
    """
    inputs = find(reference)
    if len(inputs) != 1:
        raise CheckpointError(f"'{reference}' leads to {len(inputs)} models; one is needed here")
    return inputs[0]


def list_members(
    entries: Sequence[ModelEntry], workspace: Workspace
) -> list[tuple[ModelEntry, Model]]:
    """Return the models of a merge, each with the entry that names it."""
    return [(entry, model) for entry in entries for model in workspace.models(entry.model)]


def read_weight_factors(
    weights: Literal["size"] | FileRef,
    members: Sequence[tuple[ModelEntry, Model]],
    data: Callable[[FileRef], Path],
) -> Mapping[str, float]:
    """Return the factor of each model's weight by fingerprint.

    Raises:
        CheckpointError: if a needed number of examples is unknown, or a file has the weights of other models.
    """
    if isinstance(weights, FileRef):
        found_weights = FoundWeights.read(data(weights))
        for text in found_weights.problems((model.name, model.fingerprint) for _, model in members):
            raise CheckpointError(text)
        return found_weights.weights
    sizes: dict[str, float] = {}
    for entry, model in members:
        if model.size is None:
            raise CheckpointError(_explain_missing_size(entry.model.text))
        sizes[model.fingerprint] = model.size
    return sizes


def build_inputs(
    entries: Sequence[ModelEntry], find: FindInputs, factors: Mapping[str, float] | None = None
) -> tuple[MergeInput, ...]:
    """Return the inputs of a merge, equal names with a number appended, weights times the `factors`."""
    inputs = [
        replace(
            model,
            name=entry.name or model.name,
            weight=entry.weight
            if factors is None
            else entry.weight.times(factors[model.fingerprint]),
            group=entry.group,
            options=entry.options,
            part=entry.part,
        )
        for entry in entries
        for model in find(entry.model)
    ]
    name_counts = Counter(model.name for model in inputs)
    seen_counts: Counter[str] = Counter()
    for index, model in enumerate(inputs):
        if name_counts[model.name] > 1:
            seen_counts[model.name] += 1
            inputs[index] = replace(model, name=f"{model.name} ({seen_counts[model.name]})")
    return tuple(inputs)


def name_base(base: MergeInput, inputs: Sequence[MergeInput]) -> MergeInput:
    """Return the base of a merge, with a name that none of its models has."""
    has_own_name = all(model.name != base.name for model in inputs)
    return base if has_own_name else replace(base, name=f"{base.name} (base)")


def locate_statistics(
    strategies: Sequence[Sequence[Stage]], data: Callable[[FileRef], Path]
) -> dict[str, Path]:
    """Return the paths of the statistics files that strategies name, by the references' texts."""
    links = walk_stages(link for strategy in strategies for link in strategy)
    return {file.text: data(file) for link in links for file in list_statistics_files(link)}


def keep_base(strategy: tuple[Stage, ...], keep: float) -> tuple[Stage, ...]:
    """Return the strategy with its last result averaged with the base, of which the share `keep` is kept."""
    if not strategy or not isinstance(strategy[-1], MergeStrategy):
        return strategy  # a chain that does not end with a strategy is a problem of its own
    return (*strategy[:-1], KeepBase(by=strategy[-1], keep=keep))


def describe_later_weights(weights: Literal["size"] | FileRef) -> str:
    """Return what gives the models' weights, which are known in a run only."""
    if isinstance(weights, FileRef):
        return f"step {weights.step}" if weights.step is not None else f"the file {weights.text}"
    return "the number of each model's examples"


def find_weight_problems(
    entries: Sequence[ModelEntry], context: Preflight, weights: Literal["size"] | FileRef
) -> Iterator[Problem]:
    """Yield problems of weights by size or from a file: unknown numbers of examples, or no such weights."""
    if isinstance(weights, FileRef):
        path = context.data(weights)
        try:
            if path is not None:
                FoundWeights.read(path)
        except CheckpointError as error:
            yield context.problem(str(error), "weights")
        return
    for entry in entries:
        folder = context.adapter(entry.model) or context.model(entry.model)
        artifact = read_artifact(folder) if folder is not None else None
        if folder is not None and (artifact is None or artifact.size is None):
            yield context.problem(_explain_missing_size(entry.model.text), "weights")


def _explain_missing_size(text: str) -> str:
    return (
        f"weights: size needs the number of examples that '{text}' was trained on, which it does not "
        "say; give each model a weight instead"
    )
