"""Parameters of all members on disk, of which sums and products are read a tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from emberge import Backbone, CheckpointError, Encoder, Model, Workspace
from emberge.tensor_names import prefix_of
from numpy.typing import NDArray
from torch import Tensor

from emberge_weights.inputs.members import before_length_one
from emberge_weights.layers.blocks import Blocks


@dataclass(frozen=True, eq=False)
class MemberTensors:
    """Parameters of members as one file's rows, [members, numbers], with each parameter's part of a row.

    `blocks` has the place of each parameter's block.
    """

    rows: NDArray[np.floating]
    parts: Mapping[str, slice]
    shapes: Mapping[str, tuple[int, ...]]
    blocks: Mapping[str, int]

    def mixed(self, name: str, weights: Tensor) -> Tensor:
        """Return a parameter's sum over members by weights [members]."""
        return (weights @ self._read_part(name)).view(self.shapes[name])

    def products(self, name: str, direction: Tensor) -> Tensor:
        """Return the products [members] of a parameter of each member with a direction of its shape."""
        return self._read_part(name) @ direction.reshape(-1)

    def _read_part(self, name: str) -> Tensor:
        return torch.from_numpy(self.rows[:, self.parts[name]])


def member_tensors(
    models: Sequence[Model], backbone: Backbone, blocks: Blocks, workspace: Workspace
) -> tuple[MemberTensors, Encoder]:
    """Write the parameters of members to the work folder and return them, with an encoder of the first.

    Raises:
        CheckpointError: for an encoder whose parameters are not those that a merge takes.
    """
    path = workspace.work / "members.npy"
    found: MemberTensors | None = None
    # The first comes last: its encoder stays, with the prompts that a merge takes from it.
    for done, number in enumerate((*range(1, len(models)), 0), 1):
        model = models[number]
        with workspace.whole_model(model) as folder:
            encoder = before_length_one(backbone).load(
                folder, device=workspace.machine.device, dtype="float32"
            )
        found = found or _create_rows(path, len(models), encoder, blocks, model.name)
        for name, tensor in encoder.module.named_parameters():
            found.rows[number, found.parts[name]] = (
                tensor.detach().reshape(-1).to("cpu", torch.float32).numpy()
            )
        workspace.progress(done, len(models), "models", "reading members")
    assert found is not None
    return found, encoder


def _create_rows(
    path: Path, members: int, encoder: Encoder, blocks: Blocks, called: str
) -> MemberTensors:
    place = _place_blocks(encoder, blocks, called)
    parts: dict[str, slice] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    end = 0
    for name, tensor in encoder.module.named_parameters():
        parts[name] = slice(end, end + tensor.numel())
        shapes[name] = tuple(tensor.shape)
        end += tensor.numel()
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(members, end))
    return MemberTensors(rows, parts, shapes, place)


def _place_blocks(encoder: Encoder, blocks: Blocks, called: str) -> dict[str, int]:
    """Return the place of each parameter's block.

    Raises:
        CheckpointError: when a parameter is no tensor of the merge.
    """
    stored = encoder.stored_names()
    prefix = prefix_of(list(stored.values()))
    place = {}
    for name, _ in encoder.module.named_parameters():
        tensor = stored.get(name, name)
        here = blocks.place.get(tensor, blocks.place.get(tensor.removeprefix(prefix)))
        if here is None:
            raise CheckpointError(
                f"'{called}': the parameter '{tensor}' of its encoder is no tensor of the merge, so it "
                "cannot be weighed by layer; leave 'layers' out"
            )
        place[name] = here
    return place
