"""Students of a distillation: where a smaller model's weights begin."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from emberge import (
    CheckpointError,
    EmbergeError,
    ModelRef,
    Preflight,
    WholeNumber,
    Workspace,
)
from emberge.files import fill_once
from emberge.model_folder import Checkpoint

from emberge_smaller.layers import LayerStack, cut_layers


@dataclass(frozen=True, kw_only=True)
class Student:
    """Model from which a student begins: a `model`, or some `layers` of the teacher.

    `model` may be any encoder, with its own tokenizer and size: a small model, a static model, or the dense
    form of a mixture of experts (step `downcycle`). `layers` are numbers of layers from 0, or how many to
    keep, spread evenly and with the last, as in the step `cut_layers`.
    """

    model: ModelRef | None = None
    layers: WholeNumber | tuple[WholeNumber, ...] | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.layers is None):
            raise ValueError("a student is either a 'model' or 'layers' of the teacher")

    def template(self, teacher: ModelRef) -> ModelRef:
        """Return the model that has the student's tokenizer, modules and size of embeddings."""
        return self.model if self.model is not None else teacher

    def find_problems(self, context: Preflight, teacher: ModelRef) -> Iterator[str]:
        """Yield a problem if the layers cannot be cut from the teacher."""
        folder = None if self.layers is None else context.whole_model(teacher)
        if self.layers is None or folder is None:
            return
        try:
            choice = LayerStack(Checkpoint(folder)).describe_choice(self.layers)
        except EmbergeError as error:
            yield str(error)
            return
        context.note("student", [choice])

    def __str__(self) -> str:
        return str(self.model) if self.model is not None else f"layers {self.layers}"

    def locate(self, workspace: Workspace, teacher: ModelRef) -> Path:
        """Return the folder of the teacher's layers, written into the store once.

        Raises:
            CheckpointError: if layers cannot be cut, or the teacher is an adapter.
        """
        model = workspace.model(teacher)
        if model.adapter is not None:
            raise CheckpointError(f"{model.name}: is an adapter; merge it into its base first")
        stack = LayerStack(Checkpoint(model.folder))
        from emberge.ranks import join_ranks

        numbers = stack.choose(self.layers or ())
        key = hashlib.sha256(f"{model.fingerprint} {list(numbers)}".encode()).hexdigest()[:32]
        folder = workspace.store / "students" / key

        def write() -> None:
            fill_once(
                folder,
                lambda side: cut_layers(
                    stack, numbers, workspace, content=model.fingerprint, out=side
                ),
            )

        join_ranks(workspace.machine.device).on_first_rank(write)
        return folder
