"""The `cut_layers` step: a model of some of another model's layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    CheckpointError,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
)
from emberge.model_folder import Checkpoint, TrunkConfig
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import LAYER_PATTERN, find_layer_number
from emberge.wording import count_noun, join_some
from emberge_encoder import load_text_config

# Keys of lists in configs with one entry a layer, and of one with the numbers of layers.
_LAYER_LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")
_LAYER_NUMBERS = "mlp_only_layers"
# Names and shapes of a layer's tensors.
_LayerShapes = frozenset[tuple[str, tuple[int, ...]]]


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
            return
        try:
            stack = LayerStack(Checkpoint(folder))
            context.note(
                "cutting", [f"layers {list(stack.choose_layers(self.layers))} of {stack.count}"]
            )
        except EmbergeError as error:
            yield context.problem(str(error), "layers")

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            stack = LayerStack(Checkpoint(folder))
            numbers = stack.choose_layers(self.layers)
            stack.write(numbers, workspace, content=model.fingerprint)
        details = {"layers": list(numbers), "layers_before": stack.count}
        return model.describe_change(self.model, "cutting layers from", details)


@dataclass(frozen=True)
class LayerStack:
    """The layers of a checkpoint's text trunk, from which a model of some of them can be made."""

    checkpoint: Checkpoint

    @property
    def model_type(self) -> str:
        """The config's `model_type`."""
        return str(self.checkpoint.config.get("model_type"))

    @cached_property
    def count(self) -> int:
        """The number of layers, which are numbered from 0.

        Raises:
            CheckpointError: if the model has no stack of layers that is known: it has no number of layers in
                its config, its layers share weights, it is an encoder-decoder, or its weights have other
                layers than its config.
        """
        folder, config = self.checkpoint.folder, self.checkpoint.config
        count = TrunkConfig(config).layer_count
        if not count:
            raise CheckpointError(
                f"{folder}: has no known stack of layers (model type '{self.model_type}'), so none can "
                "be cut; take a transformer whose config has num_hidden_layers"
            )
        if config.get("is_encoder_decoder"):
            raise CheckpointError(
                f"{folder}: '{self.model_type}' has an encoder and a decoder, and layers are cut from a "
                "single stack; take an encoder"
            )
        layers = self._shapes if self.checkpoint.has_weights else ()
        # The count may be absurdly large, so no range of it is made.
        if layers and (len(layers) != count or max(layers) != count - 1):
            raise CheckpointError(
                f"{folder}: its config has {count_noun(count, 'layer')} and its weights have "
                f"{count_noun(len(self._shapes), 'layer')}, as in models whose layers share weights; take a "
                "model whose layers have weights of their own"
            )
        return count

    @cached_property
    def _shapes(self) -> Mapping[int, _LayerShapes]:
        """Names and shapes of each layer's tensors, by the layer's number."""
        shapes: dict[int, set[tuple[str, tuple[int, ...]]]] = defaultdict(set)
        for name, spec in self.checkpoint.tensor_names.specs.items():
            number = find_layer_number(name)
            if number is not None:
                shapes[number].add((_shift_layer(name, -number), tuple(spec.shape)))
        return {number: frozenset(layer) for number, layer in sorted(shapes.items())}

    @cached_property
    def begins_with_first(self) -> bool:
        """True if layer 0 has other tensors than all other layers, so that none can take its place.

        The first layer of ModernBERT has no norm before its attention, and that of T5 has the positions.
        """
        if not self.checkpoint.has_weights or self.count < 2:
            return False
        return self._shapes[0] not in [self._shapes[n] for n in range(1, self.count)]

    def choose_layers(self, layers: int | Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of the layers to keep; `layers` are these numbers, or how many to keep.

        Raises:
            CheckpointError: if the model has fewer layers, or these cannot make a model.
        """
        numbers = self.spread_layers(layers) if isinstance(layers, int) else tuple(layers)
        self._require_layers(numbers)
        return numbers

    def spread_layers(self, number: int) -> tuple[int, ...]:
        """Return `number` layers that are spread evenly and end with the last: 1, 3 and 5 of six.

        If `begins_with_first`, layer 0 is among them.

        Raises:
            CheckpointError: if the model has fewer layers, or no layer stack that is known.
        """
        least = 1 + self.begins_with_first
        if not least <= number <= self.count:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {count_noun(number, 'layer')} cannot be kept: it has "
                f"{self.count}, and {least} to {self.count} can be kept"
            )
        if least == 1:
            return _spread_with_last(self.count, number)
        later_layers = _spread_with_last(self.count - 1, number - 1)
        return (0, *(layer + 1 for layer in later_layers))

    def _require_layers(self, numbers: Sequence[int]) -> None:
        """Require layers that exist, each once and in ascending order, and that can be renumbered."""
        folder, count = self.checkpoint.folder, self.count
        if not numbers:
            raise CheckpointError(f"{folder}: no layers are named; it has {count}, from 0 on")
        sound = sorted({n for n in numbers if 0 <= n < count})
        if list(numbers) != sound:
            remedy = f"; write {sound}" if sound else ""
            raise CheckpointError(
                f"{folder}: the layers {join_some(map(str, numbers), 12)} are not some of its "
                f"{count_noun(count, 'layer')}, 0 to {count - 1}, each once and in their order{remedy}"
            )
        if self.checkpoint.has_weights:
            self._require_renumberable(numbers)

    def _require_renumberable(self, numbers: Sequence[int]) -> None:
        """Require that each layer has the tensors that the model class will look for in its new place."""
        if self.begins_with_first and numbers[0] != 0:
            raise CheckpointError(
                f"{self.checkpoint.folder}: layer 0 of '{self.model_type}' has other tensors than all "
                f"others, so none can take its place; write {[0, *numbers]}"
            )
        kinds = _list_layer_kinds(TrunkConfig(self.checkpoint.config))
        shapes_by_kind: dict[str, _LayerShapes] = {}
        for number in range(1 if self.begins_with_first else 0, self.count):
            kind = str([listed[number] for listed in kinds.values()])
            if shapes_by_kind.setdefault(kind, self._shapes[number]) != self._shapes[number]:
                raise CheckpointError(
                    f"{self.checkpoint.folder}: the layers of '{self.model_type}' differ in their tensors by "
                    f"their place (layer {number}), and no list in the config says how, so they cannot be "
                    "renumbered; take a model whose layers are alike"
                )

    def build_config(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the transformer's config of a model of these layers."""
        trunk = TrunkConfig(self.checkpoint.config)
        return trunk.change(dict(_list_changes(trunk, numbers)))

    def list_tensors(self, numbers: Sequence[int]) -> Iterator[TensorSpec]:
        """Yield the tensors of a model of these layers, renumbered from 0; all other tensors stay."""
        names = self.checkpoint.tensor_names
        for name, spec in names.specs.items():
            number, stored_name = find_layer_number(name), names.name_in_result(spec)
            if number is None:
                yield spec.with_name(stored_name)
            elif number in numbers:
                yield spec.with_name(_shift_layer(stored_name, numbers.index(number) - number))

    def write(
        self,
        numbers: Sequence[int],
        workspace: Workspace,
        *,
        content: str,
        out_folder: Path | None = None,
    ) -> None:
        """Write a model of these layers, renumbered from 0, with all other files of the checkpoint.

        `content` is the fingerprint of the checkpoint. The default of `out_folder` is the step's folder.

        Raises:
            CheckpointError: if the weights cannot be read or written.
        """
        from emberge.merging import build_result

        build_result(
            workspace,
            self.list_tensors(numbers),
            template=self.checkpoint,
            key=[content, list(numbers)],
            files={self.checkpoint.locate_in_trunk("config.json"): self.build_config(numbers)},
            out=out_folder,
        )


def _list_layer_kinds(trunk: TrunkConfig) -> dict[str, list[Any]]:
    """Return the lists of a config that have one entry for each layer, by their keys.

    Where an older config has only the interval between layers with global attention, the lists are those that
    the class derives from it.
    """
    loaded_config = load_text_config(trunk.whole)
    lists = {
        key: trunk.stated.get(key) or getattr(loaded_config, key, None) for key in _LAYER_LISTS
    }
    return {
        key: value
        for key, value in lists.items()
        if isinstance(value, list) and len(value) == trunk.layer_count
    }


def _list_changes(trunk: TrunkConfig, numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for each key of the trunk's config that changes when only these layers are kept."""
    yield trunk.layer_count_key, len(numbers)
    for key, kinds in _list_layer_kinds(trunk).items():
        # A list of equal entries, which the class makes of the number of layers, stays unsaid.
        if trunk.stated.get(key) is not None or len(set(kinds)) > 1:
            yield key, [kinds[number] for number in numbers]
    listed = trunk.stated.get(_LAYER_NUMBERS)
    if isinstance(listed, list):
        yield _LAYER_NUMBERS, [place for place, number in enumerate(numbers) if number in listed]


def _spread_with_last(count: int, number: int) -> tuple[int, ...]:
    return tuple((place + 1) * count // number - 1 for place in range(number))


def _shift_layer(name: str, by: int) -> str:
    """Return a tensor's name with its layer's number increased by `by`."""
    match = LAYER_PATTERN.search(name)
    if not match or not by:
        return name
    return f"{name[: match.start(2)]}{int(match[2]) + by}{name[match.end(2) :]}"
