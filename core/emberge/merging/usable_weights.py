"""The check that layers can work with a model's weights, for steps that use a model as it is."""

from __future__ import annotations

from pathlib import Path

import torch

from emberge.errors import CheckpointError
from emberge.merging.streaming.jobs import is_usable
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, TensorSpec
from emberge.wording import count_noun, join_some, printable

__all__ = ["require_usable_weights"]

# Elements that are looked at together: 64 MiB of float32.
_PIECE = 1 << 24
_FLOATS = ("float", "bfloat")


def require_usable_weights(folder: Path) -> None:
    """Read all weights of a model's folder, piece by piece, and refuse NaN and too large values.

    Raises:
        CheckpointError: naming the tensors, and for weights that cannot be read.
    """
    specs = [one for one in Checkpoint(folder).specs.values() if one.dtype.startswith(_FLOATS)]
    with TensorReader() as reader:
        wrong = [printable(one.name) for one in specs if not _is_usable(one, reader)]
    if wrong:
        raise CheckpointError(
            f"{printable(folder)}: {count_noun(len(wrong), 'tensor')} with values that are NaN, infinite or "
            f"above 1.8e19: {join_some(wrong)}; train or merge it again, or take an earlier state of it"
        )


def _is_usable(spec: TensorSpec, reader: TensorReader) -> bool:
    for start in range(0, spec.elements, _PIECE):
        piece = torch.empty(min(_PIECE, spec.elements - start))
        reader.read(spec, start, piece)
        if not is_usable(piece):
            return False
    return True
