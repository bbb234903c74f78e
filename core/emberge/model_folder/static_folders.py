"""Folders of static models, whose first module is a StaticEmbedding: a vector for each token."""

from __future__ import annotations

from pathlib import Path

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import read_object
from emberge.model_folder.st_layout import read_modules

# Names of the table of vectors: that of sentence-transformers, and that of model2vec.
_TABLES = ("embedding.weight", "embeddings")


def is_static_model(folder: Path) -> bool:
    """Return whether a folder is a static model: its first module is a StaticEmbedding.

    Raises:
        CheckpointError: if modules.json cannot be read.
    """
    modules = read_modules(folder)
    return bool(modules) and modules[0].kind == "StaticEmbedding"


def read_static_dimension(folder: Path) -> int | None:
    """Return the size of embeddings of a static model from its files; None if none has it.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    first, *after = read_modules(folder)
    for module in reversed(after):
        if module.kind == "Dense":
            size = read_object(folder / module.path / "config.json").get("out_features")
            return size if type(size) is int else None
    checkpoint = Checkpoint(folder)
    if not checkpoint.has_weights:
        return None
    prefix = "" if checkpoint.parts[""] == first.path else f"{first.path}."
    tables = [
        spec for name, spec in checkpoint.specs.items() if name.removeprefix(prefix) in _TABLES
    ]
    return int(tables[0].shape[1]) if tables and len(tables[0].shape) == 2 else None
