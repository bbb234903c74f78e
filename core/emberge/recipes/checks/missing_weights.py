"""Models and adapters without weights on this machine, found before the start."""

from __future__ import annotations

from pathlib import Path

from emberge.contracts import ModelRef
from emberge.errors import CheckpointError
from emberge.model_folder import Checkpoint, other_format
from emberge.recipes.references import LocatedModel, is_folder
from emberge.tensor_files import WEIGHTS

ADAPTER_WEIGHTS = "adapter_model.safetensors"  # peft's name


def missing_weights(reference: ModelRef, found: LocatedModel) -> str | None:
    """Return what is wrong with the folders that a reference names if one has no weights, else None.

    A model of the hub may have nothing but metadata here yet. Weights that are there and damaged are for
    others to find.
    """
    model = _of_model(reference.main, found.folder) if is_folder(reference.main) else None
    text = reference.adapter
    if model is not None or text is None or found.adapter is None or not is_folder(text):
        return model
    there = any(found.adapter.glob(f"{Path(ADAPTER_WEIGHTS).stem}.*"))
    return None if there else _none_in(text, ADAPTER_WEIGHTS, found.adapter)


def _of_model(text: str, folder: Path) -> str | None:
    checkpoint = Checkpoint(folder)
    try:
        if checkpoint.has_weights:
            return None
        return other_format(checkpoint.trunk) or _none_in(text, WEIGHTS, checkpoint.trunk)
    except CheckpointError:
        return None


def _none_in(text: str, file: str, folder: Path) -> str:
    return (
        f"'{text}' has no weights: there is no {file} in {folder}; get it, or name another folder"
    )
