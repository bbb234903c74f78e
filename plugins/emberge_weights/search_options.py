"""Options of a search for weights, and the problems that can be found before any work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from emberge import (
    Artifact,
    Backbone,
    Count,
    DataError,
    Expected,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Stage,
    Step,
    TextLength,
    WholeNumber,
    component,
)
from emberge.merging import MergeInput
from emberge.model_folder import TextLimit, read_settings
from emberge_data import check_eval_sets

from emberge_weights.members import plan_of, plan_problems
from emberge_weights.weight_sets import SetEntry, WeightSet, read_set, require_sets, unusable


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Step):
    """Models, sets and limits of a search."""

    models: tuple[ModelRef, ...]
    """The models to merge."""
    base: ModelRef | None = None
    """Common ancestor of the models; it becomes a member and may get a weight."""
    base_share: Annotated[float, NumberRange(least=0, below=1)] = 0.0
    """Share of the base in the equal weights, which stay where no others are clearly better. If they are not
    clearly better than the base alone either, the base gets a half."""
    data: tuple[SetEntry, ...]
    """Evaluation sets to choose by; their `dev` halves are used."""
    candidates: Count = 1000
    """Number of weightings to score."""
    max_length: TextLength | None = None
    """Largest number of tokens of a text; by default the models' own limit."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoints."""
    strategy: Stage = component("linear")
    """Strategy that merges the members: a weighted mean."""
    seed: WholeNumber | None = None
    """Seed of candidates and halves; by default the recipe's."""


def problems(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    """Yield problems of the options, the sets and the models of a search."""
    if not step.data:
        yield context.problem("data names no evaluation set", "data")
    if step.base_share and step.base is None:
        yield context.problem("base_share has no effect without a base", "base_share")
    yield from _check_sets(step, context)
    yield from _check_models(step, context)


def _check_sets(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    sets: list[WeightSet] = []
    for entry in step.data:
        seen, faults = check_eval_sets(context, entry, entry.split)
        faults = [*faults, *(fault for one in seen if (fault := unusable(one)))]
        yield from (context.problem(fault, "data") for fault in faults)
        if not faults and entry.path.step is None:  # those of a step are not there yet
            sets += [read_set(one, entry, context.readers) for one in seen]
    try:
        require_sets(sets)
    except DataError as error:
        yield context.problem(str(error), "data")
    if any(entry.split == "test" for entry in step.data):
        yield context.warning(
            "weights are chosen on a test half; what is reported on it will look better than it is",
            "data",
        )


def _check_models(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    """Check from headers alone that the members can be merged; yield each problem."""
    references = [*step.models, *([step.base] if step.base is not None else [])]
    for text, count in Counter(reference.text for reference in references).items():
        if count > 1:
            yield context.problem(f"'{text}' is named {count} times; once is enough", "models")
    if len(references) < 2 and not any(reference.part for reference in references):
        yield context.problem("weights need two models, or one and its base", "models")
    context.expect(
        Expected(Artifact(kind="file", details={"models": [model.text for model in references]}))
    )
    inputs = []
    for reference in references:
        folder = context.model(reference)
        if folder is not None:
            inputs.append(MergeInput(reference.text, folder, adapter=context.adapter(reference)))
            yield from _check_model(step, reference, folder, context)
    if len({model.name for model in inputs}) > 1:
        for fault in plan_problems(plan_of(inputs, step.strategy)):
            yield context.problem(fault, "models")


def _check_model(
    step: SearchOptions, reference: ModelRef, folder: Path, context: Preflight
) -> Iterator[Problem]:
    """Yield problems of one model."""
    problems = step.backbone.describe(folder).problems
    for fault in problems or TextLimit.read(folder).problems(step.max_length):
        yield context.problem(f"{reference}: {fault}", "models")
    similarity = read_settings(folder).get("similarity_fn_name") or "cosine"
    if similarity != "cosine":
        yield context.warning(
            f"{reference} compares by {similarity}, and here all are compared by cosine", "models"
        )
