"""Tensors of members by blocks of layers, and the forward pass of their merge without writing it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import Backbone, CheckpointError, Encoder, Model, PerTensor, TokenisedText, Workspace
from emberge.encoding import device_of, embed_with_parameters
from emberge.merging import MergePlan
from emberge.tensor_names import layer_order, prefix_of
from numpy.typing import NDArray
from torch import Tensor

from emberge_weights.members import before_length_one
from emberge_weights.search_options import CHUNK

_NUMBERED = re.compile(r"\.\d+$")
# From texts to their embeddings [n, d], which coefficients have a gradient through.
Embed = Callable[[Sequence[TokenisedText]], Tensor]


@dataclass(frozen=True)
class Blocks:
    """Names of blocks of layers in order, and the index of each tensor's block."""

    names: Sequence[str]
    place: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.names)

    def weights(self, values: Sequence[float], default: float) -> PerTensor:
        """Return one member's weights by tensor from its weights by block; other tensors get `default`."""
        parts = self._name_parts()
        entries = [{"filter": part, "value": values[number]} for part, number in parts.items()]
        return PerTensor([*entries, {"value": default}])

    def _name_parts(self) -> dict[str, int]:
        """Return parts of tensor names in the order to try them, each with the index of its block."""
        begins = {
            _find_common_beginning(
                [name for name, block in self.place.items() if block == number]
            ): number
            for number in range(len(self))
        }
        # A layer's tensors may have the names of modules outside the layers in theirs.
        order = sorted(begins, key=lambda b: (not _NUMBERED.search(self.names[begins[b]]), -len(b)))
        parts = {begin: begins[begin] for begin in order}
        if all(parts) and all(_find_first_part(parts, name) == p for name, p in self.place.items()):
            return parts
        # Whole names, of which one that has another in it comes first.
        return {name: self.place[name] for name in sorted(self.place, key=lambda n: -len(n))}


def blocks_of(plan: MergePlan) -> Blocks:
    """Return the blocks of a merge: one for each layer, and one for the other tensors of each module."""
    layers = {
        tensor.name: plan.layers[tensor.name] for tensor in plan.tensors if tensor.action == "merge"
    }
    names = layer_order(layers.values())
    return Blocks(names, {name: names.index(layer) for name, layer in layers.items()})


def _find_common_beginning(names: Sequence[str]) -> str:
    """Return the names' longest common prefix of whole words; for a single name the whole name."""
    words = zip(*(name.split(".") for name in names), strict=False)
    shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, words)]
    return names[0] if len(names) == 1 else "".join(f"{word}." for word in shared)


def _find_first_part(parts: Mapping[str, int], name: str) -> int | None:
    return next((number for part, number in parts.items() if part in name), None)


@dataclass(frozen=True, eq=False)
class MemberTensors:
    """Parameters of members as rows of one file, [members, numbers], with each parameter's range in a row.

    `blocks` has the index of each parameter's block.
    """

    rows: NDArray[np.floating]
    parts: Mapping[str, slice]
    shapes: Mapping[str, tuple[int, ...]]
    blocks: Mapping[str, int]

    def mixed(self, name: str, weights: Tensor) -> Tensor:
        """Return a parameter's sum over members by weights [members]."""
        return (weights @ self._read_part(name)).view(self.shapes[name])

    def products(self, name: str, direction: Tensor) -> Tensor:
        """Return the inner products [members] of members' parameters with a direction of the same shape."""
        return self._read_part(name) @ direction.reshape(-1)

    def _read_part(self, name: str) -> Tensor:
        return torch.from_numpy(self.rows[:, self.parts[name]])


def member_tensors(
    models: Sequence[Model], backbone: Backbone, blocks: Blocks, workspace: Workspace
) -> tuple[MemberTensors, Encoder]:
    """Write the members' parameters to the work folder; return them with an encoder of the first member.

    Raises:
        CheckpointError: if an encoder's parameters are not the tensors that a merge combines.
    """
    path = workspace.work / "members.npy"
    tensors: MemberTensors | None = None
    # The first comes last: its encoder stays, with the prompts that a merge takes from it.
    for done, number in enumerate((*range(1, len(models)), 0), 1):
        model = models[number]
        with workspace.whole_model(model) as folder:
            encoder = before_length_one(backbone).load(
                folder, device=workspace.machine.device, dtype="float32"
            )
        tensors = tensors or _create_rows(path, len(models), encoder, blocks, model.name)
        for name, tensor in encoder.module.named_parameters():
            tensors.rows[number, tensors.parts[name]] = (
                tensor.detach().reshape(-1).to("cpu", torch.float32).numpy()
            )
        workspace.progress(done, len(models), "models", "reading members")
    assert tensors is not None
    return tensors, encoder


def _create_rows(
    path: Path, members: int, encoder: Encoder, blocks: Blocks, called: str
) -> MemberTensors:
    block_of = _place_blocks(encoder, blocks, called)
    parts: dict[str, slice] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    end = 0
    for name, tensor in encoder.module.named_parameters():
        parts[name] = slice(end, end + tensor.numel())
        shapes[name] = tuple(tensor.shape)
        end += tensor.numel()
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(members, end))
    return MemberTensors(rows, parts, shapes, block_of)


def _place_blocks(encoder: Encoder, blocks: Blocks, called: str) -> dict[str, int]:
    """Return the index of each parameter's block.

    Raises:
        CheckpointError: if a parameter is not a tensor of the merge.
    """
    stored_names = encoder.stored_names()
    prefix = prefix_of(list(stored_names.values()))
    block_of = {}
    for name, _ in encoder.module.named_parameters():
        tensor = stored_names.get(name, name)
        block = blocks.place.get(tensor, blocks.place.get(tensor.removeprefix(prefix)))
        if block is None:
            raise CheckpointError(
                f"'{called}': the parameter '{tensor}' of its encoder is no tensor of the merge, so it "
                "cannot be weighed by layer; leave 'layers' out"
            )
        block_of[name] = block
    return block_of


class MixedForward:
    """Encoder whose parameters are weighted sums over members, with weights by block.

    Memory holds one model, its gradient and the activations of a chunk. The members stay on disk, and each
    chunk is computed again for the gradient.
    """

    def __init__(self, encoder: Encoder, members: MemberTensors) -> None:
        encoder.module.eval().requires_grad_(False)
        self.encoder = encoder
        self.members = members
        self._device = device_of(encoder)

    def at(self, coefficients: Tensor) -> Embed:
        """Return the embedding of texts by the merge with coefficients [blocks, members]."""
        parameters = {
            name: _mix_parameter(coefficients[block], self.members, name).to(self._device)
            for name, block in self.members.blocks.items()
        }

        def embed(texts: Sequence[TokenisedText]) -> Tensor:
            return embed_with_parameters(self.encoder, parameters, texts, CHUNK)

        return embed


class _Mixed(torch.autograd.Function):
    """Weighted sum of a parameter over members; the gradient of the weights reads the members again."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, members: MemberTensors, name: str) -> Tensor:
        ctx.members, ctx.name = members, name
        return members.mixed(name, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.members.products(ctx.name, gradients[0]), None, None


def _mix_parameter(weights: Tensor, members: MemberTensors, name: str) -> Tensor:
    return _Mixed.apply(weights, members, name)  # type: ignore[no-any-return,no-untyped-call]
