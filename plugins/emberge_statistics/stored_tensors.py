"""Tensors of a checkpoint under the names that merges use, and an encoder's parameters under the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import CheckpointError

if TYPE_CHECKING:
    from emberge import Encoder


@dataclass(frozen=True)
class StoredTensors:
    """Tensors of a checkpoint that merges take, by canonical name; `vocabulary` have a row a token."""

    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: frozenset[str]

    def names_of(self, encoder: Encoder) -> dict[str, str]:
        """Return the canonical name of every parameter of an encoder that was loaded from the checkpoint.

        Raises:
            CheckpointError: when a parameter has none, or another shape on disk.
        """
        stored = encoder.stored_names()
        names = dict(zip(stored, self._canonical(list(stored.values())), strict=True))
        found = {}
        for parameter, tensor in encoder.module.named_parameters():
            name = names.get(parameter, parameter)
            if self.shapes.get(name) != tuple(tensor.shape):
                raise CheckpointError(
                    f"{name}: the encoder has it as {list(tensor.shape)} and the checkpoint has not, so "
                    "what is measured of it belongs to no tensor"
                )
            found[parameter] = name
        return found

    def _canonical(self, stored: Sequence[str]) -> list[str]:
        """Return names on disk as canonical ones: without the prefix of the text backbone."""
        from emberge.tensor_names import prefix_of

        prefix = prefix_of(stored)
        return [n if n in self.shapes else n.removeprefix(prefix) for n in stored]


def stored_tensors(folder: Path) -> StoredTensors:
    """Return the tensors of a model folder.

    Raises:
        CheckpointError: when two of them would have one name.
    """
    from emberge.model_folder import Checkpoint
    from emberge.tensor_names import is_vocabulary

    specs = Checkpoint(folder).names.specs
    shapes = {name: spec.shape for name, spec in specs.items() if spec.mergeable}
    return StoredTensors(shapes, frozenset(filter(is_vocabulary, shapes)))
