"""The `cut_layers` step: a model of some of another model's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
from emberge.model_folder import Checkpoint

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
    """Numbers of the layers to keep, from 0 and in ascending order, or how many to keep, spread evenly and
    with the last."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            context.expect(Expected(Artifact(kind="model", parents=(self.model.text,))))
            return
        try:
            stack = LayerStack(Checkpoint(folder))
            stack.choose(self.layers)
        except EmbergeError as error:
            yield context.problem(str(error), "layers")
            return
        context.expect(Expected(Artifact(kind="model", parents=(self.model.text,))))
        context.note("cutting", [stack.describe_choice(self.layers)])

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            stack = LayerStack(Checkpoint(folder))
            numbers = stack.choose(self.layers)
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
