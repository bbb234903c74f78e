"""The student that ends an adaptation: its kind and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import CheckpointError, RecipeError
from emberge.model_folder import Checkpoint, LayerConfig, is_static_model
from emberge.wording import count_noun

if TYPE_CHECKING:
    from emberge import Plugins

# Words of `--small`; without a value it is half of the layers.
HALF, STATIC = "half", "static"
# Optimizer steps that a student should have, by the effort, and the most passes over few texts. Its teacher
# embeds each text once, so that a pass costs the student's own training alone.
_WANTED_STEPS: Mapping[str, int] = {"quick": 200, "normal": 400, "thorough": 1000}
_MOST_PASSES = 20
# The most further documents that a student reads, by the effort.
_MOST_DOCUMENTS: Mapping[str, int] = {"quick": 5_000, "normal": 20_000, "thorough": 100_000}
# Examples of a batch of every training.
BATCH_SIZE = 32
# Learning rates of a student of layers, and of one that is a table of tokens' vectors.
_RATE, _STATIC_RATE = "5e-4", "3e-3"


@dataclass(frozen=True, kw_only=True)
class StudentPlan:
    """Settings of the distillation of a student of so many `layers` of the model's; None for a static one.

    `documents` is the number of further documents that the student reads.
    """

    layers: int | None
    of_layers: int
    epochs: int
    documents: int = 0

    @property
    def learning_rate(self) -> str:
        """The highest learning rate, as the recipe has it."""
        return _STATIC_RATE if self.layers is None else _RATE

    @property
    def summary(self) -> str:
        """The kind of the student in words."""
        if self.layers is None:
            return "one vector for each token"
        return f"{self.layers} of {count_noun(self.of_layers, 'layer')}"


def read_small(value: str | int | bool | None) -> str | int | None:
    """Return the kind of student that a value of `--small` names: layers, `half`, `static`; None for none.

    In Python, True is the option without a value.

    Raises:
        RecipeError: if the value is no whole number of layers above 0 and none of these words.
    """
    if value is None or value is False:
        return None
    if value is True:
        return HALF
    text = str(value)
    if text in (HALF, STATIC):
        return text
    if re.fullmatch(r"[1-9][0-9]{0,4}", text, re.ASCII):
        return int(text)
    raise RecipeError(
        f"--small {text}: write how many layers to keep (--small 3), or --small static; without a "
        "value it keeps half of them, and DATA is written before it"
    )


def plan_student(
    kind: str | int, model: str, folder: Path, *, rows: int, documents: int, effort: str
) -> StudentPlan:
    """Choose the settings of a student of the model in `folder`, for so many training rows and documents.

    `model` is its name in messages. Few texts are read several times, so that a training has enough steps.

    Raises:
        RecipeError: if the student would have all layers of the model.
        CheckpointError: if the model is a static one.
    """
    if is_static_model(folder):
        raise CheckpointError(
            f"--small: {model} is a static model, which has no layers to leave out; leave --small "
            "out, or name a transformer by --model"
        )
    of_layers = LayerConfig(Checkpoint(folder).config).count or 0
    layers = None if kind == STATIC else max(1, of_layers // 2) if kind == HALF else int(kind)
    if layers is not None and layers == of_layers:
        raise RecipeError(
            f"--small: {model} has {count_noun(of_layers, 'layer')}, and a student of {layers} "
            "would be as large; name fewer, or --small static"
        )
    documents = min(documents, _MOST_DOCUMENTS[effort])
    steps = max(1, (rows + documents) // BATCH_SIZE)
    epochs = min(max(1, round(_WANTED_STEPS[effort] / steps)), _MOST_PASSES)
    return StudentPlan(layers=layers, of_layers=of_layers, epochs=epochs, documents=documents)


def require_student(plan: StudentPlan, model: str, plugins: Plugins) -> None:
    """Check that the student can be made of the base, by the step that begins it, before any work.

    The merged model has the layers and the tokenizer of the base, whose reference is `model`.

    Raises:
        CheckpointError: if the step finds an error.
    """
    from emberge import check_recipe, parse_recipe

    model = model.replace("$", "$$")  # names no step
    static, cut = {"teacher": model}, {"model": model, "layers": plan.layers}
    step = {"static_model": static} if plan.layers is None else {"cut_layers": cut}
    for problem in check_recipe(parse_recipe({"steps": {"small": step}}, plugins), plugins).errors:
        remedy = "" if plan.layers is None else "; or take --small static, which needs no layers"
        raise CheckpointError(f"--small: {problem.message}{remedy}")
