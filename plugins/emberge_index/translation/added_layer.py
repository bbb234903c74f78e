"""The linear layer that a model has in addition to an older one: a map that is known, not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataError

from emberge_index.translation.maps import Map

if TYPE_CHECKING:
    from emberge.model_folder import ModuleFolder

    from emberge_index.translation.folds import Paired

# Largest distance of a mapped vector from the new model's, by its length: rounding of float32 and float16.
_ROUNDING = 2e-3


def read_added_layer(old: Path, new: Path) -> Map:
    """Return the map of the one Dense that the new model has and the old one has not.

    Raises:
        DataError: if the new model is not the old one with a linear layer at the end, as `rotate` adds it.
        CheckpointError: if the modules of a folder cannot be read.
    """
    import numpy as np
    from emberge.model_folder import read_modules, read_object
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    before, after = read_modules(old), list(read_modules(new))
    place = len(after) - 1
    if place > 0 and after[place].kind == "Normalize":
        place -= 1
    layer = after.pop(place) if after else None
    if layer is None or layer.kind != "Dense" or _kinds(before) != _kinds(after):
        raise DataError(
            f"{new}: is not {old} with one linear layer more, as a step `rotate` makes it; take another "
            "kind, such as affine"
        )
    config = read_object(new / layer.path / "config.json")
    is_linear = str(config.get("activation_function", "")).rpartition(".")[2] == "Identity"
    try:
        tensors = load_file(new / layer.path / "model.safetensors")
        matrix = tensors["linear.weight"].T.astype(np.float64)
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DataError(f"{new / layer.path}: has no weights that can be read: {error}") from error
    offset = tensors.get("linear.bias", np.zeros(matrix.shape[-1])).astype(np.float64)
    is_finite = bool(np.isfinite(matrix).all() and np.isfinite(offset).all())
    if not (is_linear and is_finite and matrix.ndim == 2 and offset.shape == matrix.shape[1:]):
        raise DataError(
            f"{new / layer.path}: is no linear layer of finite numbers; take another kind, such as affine"
        )
    return Map(matrix, offset)


def _kinds(modules: Sequence[ModuleFolder]) -> list[str]:
    return [module.kind for module in modules]


def require_same(known: Map, source: Paired, target: Paired, names: str) -> None:
    """Refuse a map unless it turns the old model's vectors of texts into the new model's.

    Raises:
        DataError: if it does not; the weights below the layer are then others, or other prompts were used.
    """
    import numpy as np
    from emberge.numerics import unit_rows

    if source[:1].shape[1] != len(known.matrix) or target[:1].shape[1] != len(known.offset):
        raise DataError(
            f"{names}: the layer leads from {len(known.matrix):,} numbers to {len(known.offset):,}, and the "
            f"models' vectors have {source[:1].shape[1]:,} and {target[:1].shape[1]:,}"
        )
    places = np.arange(min(len(source), 4096))
    expected = unit_rows(target[places])
    distances = np.linalg.norm(unit_rows(known(source[places])) - expected, axis=1)
    if (distances > _ROUNDING).any():
        raise DataError(
            f"{names}: the new model's vectors are not the old one's through its last linear layer "
            f"({int((distances > _ROUNDING).sum()):,} of {len(places):,} texts differ), so it was made from "
            "another model, or texts were embedded with other prompts; take kind: affine"
        )
