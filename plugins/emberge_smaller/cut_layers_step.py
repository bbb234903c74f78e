"""The `cut_layers` step: a model of some of another model's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emberge import (
    Artifact,
    Backbone,
    DataEntry,
    EmbergeError,
    Expected,
    ModelRef,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.model_folder import Checkpoint, count_parameters

from emberge_smaller.corpus import read_corpus
from emberge_smaller.layers import BestLayers, LayerStack, cut_layers


@dataclass(frozen=True, kw_only=True)
class CutLayers(Step):
    """Cut a model to some of its layers, which stay in their order and are renumbered.

    The result has the weights of these layers, and the embeddings, pooling, heads and tokenizer of the model.
    Its config has the new number of layers and the kind of each. Nothing is trained: such a model is where
    distillation starts (DistilBERT takes every second layer, Sanh et al., 2019, arXiv:1910.01108), and before
    that its embeddings are worth less. Of a model with tasks, the last layer counts most: pooling and heads
    have learned to read it.

    With `layers: {best: 3}` texts decide which layers stay. Each layer's cost is the distance between the
    embeddings without it and the whole model's, by their mean cosine, and the cheapest is removed, one after
    another. The artifact has the cosines, also of the layers that are spread evenly, which are taken if they
    are nearer. The last layer goes only if the texts decide so.

    Example:
        shallow:
          cut_layers: {model: ./teacher, layers: [1, 3, 5]}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The model, plain or in a SentenceTransformers folder."""
    layers: WholeNumber | tuple[WholeNumber, ...] | BestLayers
    """Numbers of the layers to keep, from 0 and in ascending order, or how many to keep, spread evenly and
    with the last; or `{best: 3}`, chosen on `data`."""
    data: tuple[DataEntry, ...] = ()
    """Texts on which `best` layers are chosen: at most 256 of them are embedded, without a prompt."""
    backbone: Backbone = component("text_encoder")
    """Backbone that embeds these texts."""

    def __post_init__(self) -> None:
        if isinstance(self.layers, BestLayers) != bool(self.data):
            raise ValueError(
                "'data' has no effect without layers: {best: …}; leave it out"
                if self.data
                else "the best 'layers' are chosen on texts; give 'data'"
            )

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        yield from check_datasets(context, self.data, show=False).problems if self.data else ()
        folder = context.whole_model(self.model)
        if folder is None:
            context.expect(Expected(Artifact(kind="model", parents=(self.model.text,))))
            return
        for message in self.backbone.describe(folder).problems if self.data else ():
            yield context.problem(message, "backbone")
        try:
            stack = LayerStack(Checkpoint(folder))
            numbers, parameters = stack.choose(self.layers), None
            if stack.checkpoint.has_weights:
                left_out = stack.list_left_out(numbers)
                parameters = count_parameters(stack.checkpoint, left_out=left_out)
        except EmbergeError as error:
            yield context.problem(str(error), "layers")
            return
        context.expect(
            Expected(Artifact(kind="model", parents=(self.model.text,)), parameters=parameters)
        )
        context.note("cutting", [stack.describe_choice(self.layers)])

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            stack = LayerStack(Checkpoint(folder))
            numbers, choice = stack.choose(self.layers), None
            if isinstance(self.layers, BestLayers):
                from emberge_smaller.best_layers import choose_best

                texts = read_corpus(workspace, self.data, "data")
                choice = choose_best(stack, self.layers.best, texts, self.backbone, workspace)
                numbers = choice.layers
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
                **({} if choice is None else choice.as_details(stack.count)),
            },
        )
