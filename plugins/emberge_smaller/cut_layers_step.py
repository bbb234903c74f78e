"""The `cut_layers` step: a model of some of another model's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberge import (
    Artifact,
    EmbergeError,
    Expected,
    ModelRef,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
)
from emberge.model_folder import Checkpoint, count_parameters

from emberge_smaller.layers import LayerStack, cut_layers


@dataclass(frozen=True, kw_only=True)
class CutLayers(Step):
    """Cut a model to some of its layers, which stay in their order and are renumbered.

    The result has the weights of these layers, and the embeddings, pooling, heads and tokenizer of the model.
    Its config has the new number of layers and the kind of each. Nothing is trained: such a model is where
    distillation starts (DistilBERT takes every second layer, Sanh et al., 2019, arXiv:1910.01108), and before
    that its embeddings are worth less. Of a model with tasks, the last layer counts most: pooling and heads
    have learned to read it.

    Example:
        shallow:
          cut_layers: {model: ./teacher, layers: [1, 3, 5]}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The model, plain or in a SentenceTransformers folder."""
    layers: WholeNumber | tuple[WholeNumber, ...]
    """Numbers of the layers to keep, from 0 and in ascending order, or how many to keep."""
    keep: Literal["even_with_last"] = "even_with_last"
    """Choice of layers if `layers` is how many: spread evenly, and always with the last one."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            context.expect(Expected(Artifact(kind="model", parents=(self.model.text,))))
            return
        try:
            stack = LayerStack(Checkpoint(folder))
            numbers = self.choose_layers(stack)
            stack.require_layers(numbers)
            left_out = stack.list_left_out(numbers) if stack.checkpoint.has_weights else ()
            parameters = count_parameters(stack.checkpoint, left_out=left_out)
        except EmbergeError as error:
            yield context.problem(str(error), "layers")
            return
        has_weights = stack.checkpoint.has_weights
        context.expect(
            Expected(
                Artifact(kind="model", parents=(self.model.text,)),
                parameters=parameters if has_weights else None,
            )
        )
        context.note("cutting", [f"layers {list(numbers)} of {stack.count}"])

    def choose_layers(self, stack: LayerStack) -> tuple[int, ...]:
        """Return the numbers of the layers to keep.

        Raises:
            CheckpointError: if there are fewer layers than to be kept, or no layer stack that is known.
        """
        if isinstance(self.layers, int):
            return stack.choose_even_with_last(self.layers)
        return self.layers

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            stack = LayerStack(Checkpoint(folder))
            numbers = self.choose_layers(stack)
            cut_layers(stack, numbers, workspace, content=model.fingerprint)
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={
                "made_by": "cutting layers from",
                **model.as_base(self.model),
                "layers": list(numbers),
                "layers_before": stack.count,
            },
        )
