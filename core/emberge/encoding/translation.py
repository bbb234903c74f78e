"""Translations of embeddings: a fitted map from the space of one model to that of another, as a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emberge.errors import DataError

__all__ = ["TRANSLATION_FILE", "Translation", "read_translation", "write_translation"]

TRANSLATION_FILE = "translation.safetensors"
_LENGTH = np.finfo(np.float32).tiny


@dataclass(frozen=True, eq=False)
class Translation:
    """Map of row vectors x to x · `matrix` + `shift`, brought to length one if it is to `unit` vectors.

    `matrix` [d, e] is None for the identity. `source` and `target` are fingerprints of the two models.
    """

    source: str
    target: str
    matrix: NDArray[np.float64] | None
    shift: NDArray[np.float64]
    unit: bool = True

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides the vectors which it gives."""
        digest = hashlib.sha256(f"{self.source} {self.target} {self.unit}".encode())
        for values in (self.matrix, self.shift):
            digest.update(b"\0" if values is None else np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the translated rows [n, e].

        Raises:
            DataError: for rows of another size than the source's.
        """
        width = len(self.shift) if self.matrix is None else len(self.matrix)
        if rows.shape[1] != width:
            raise DataError(
                f"a translation of vectors of {width} numbers got some of {rows.shape[1]}; give it those "
                "of the model that it was fitted from"
            )
        moved = rows if self.matrix is None else rows @ self.matrix.astype(np.float32)
        moved = moved + self.shift.astype(np.float32)
        if not self.unit:
            return moved
        lengths = np.linalg.norm(moved, axis=1, keepdims=True)
        unit: NDArray[np.float32] = moved / np.maximum(lengths, _LENGTH)
        return unit


def write_translation(folder: Path, translation: Translation) -> Path:
    """Write a translation into a folder and return its file."""
    from safetensors.numpy import save_file

    tensors = {"shift": translation.shift}
    if translation.matrix is not None:
        tensors["matrix"] = np.ascontiguousarray(translation.matrix)
    path = folder / TRANSLATION_FILE
    notes = {
        "source": translation.source,
        "target": translation.target,
        "unit": str(translation.unit),
    }
    save_file(tensors, str(path), metadata=notes)
    return path


def read_translation(folder: Path) -> Translation:
    """Return the translation in a folder, or of a file.

    Raises:
        DataError: when there is none, or one that cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / TRANSLATION_FILE if folder.is_dir() else folder
    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = file.metadata() or {}
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).astype(np.float64) for name in names}
        return Translation(
            notes["source"],
            notes["target"],
            tensors.get("matrix"),
            tensors["shift"],
            notes["unit"] == "True",
        )
    except (OSError, KeyError, SafetensorError) as error:
        raise DataError(
            f"{path}: this is no translation of embeddings ({error!r}); give the result of a step translate"
        ) from error
