"""Translations of embeddings from one model's space to another's, read from a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emberge.errors import DataError
from emberge.numerics import unit_rows
from emberge.wording import printable

_FILE, _KEY = "translation.safetensors", "translation"


@dataclass(frozen=True, eq=False)
class SpaceMap:
    """A map of vectors x [d] to x · `matrix` + `offset` [e], normalised if the target's vectors are.

    `source` and `target` are fingerprints of the two models.
    """

    source: str
    target: str
    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]
    unit: bool

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the translated vectors."""
        digest = hashlib.sha256(f"{self.source} {self.target} {self.unit}".encode())
        for values in (self.matrix, self.offset):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the translated rows, float32 [n, e]; zero rows (of empty documents) stay zero.

        Raises:
            DataError: if the rows' size differs from that of the source's vectors.
        """
        if rows.shape[1] != len(self.matrix):
            raise DataError(
                f"a translation of vectors of {len(self.matrix)} numbers got some of {rows.shape[1]}; give "
                "it those of the model that it was fitted from"
            )
        translated = rows.astype(np.float64) @ self.matrix + self.offset
        if self.unit:
            translated = unit_rows(translated)
        translated[~rows.any(axis=1)] = 0
        return translated.astype(np.float32)


def read_space_map(location: Path) -> SpaceMap:
    """Read a translation from a file, or from the folder of the step that computed it.

    Raises:
        DataError: if there is none, it cannot be read, or its numbers are invalid.
    """
    from safetensors import SafetensorError, safe_open

    path = location / _FILE if location.is_dir() else location
    if (location / "modules.json").is_file():
        raise DataError(
            f"{location}: is a model, such as a step `bridge` makes, and no translation; a bridge embeds "
            "queries for the old index as it is. To rewrite vectors, name the result of a step `translate`"
        )
    if not path.is_file():
        raise DataError(
            f"{location}: has no {_FILE}; name the result of a step `translate`, such as out/{{its id}}"
        )
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            matrix, offset = file.get_tensor("matrix"), file.get_tensor("offset")
        source, target = header["source"], header["target"]
        _require_map(matrix, offset, source["dimension"], target["dimension"])
        return SpaceMap(
            str(source["fingerprint"]),
            str(target["fingerprint"]),
            matrix,
            offset,
            bool(target["normalised"]),
        )
    except (OSError, KeyError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise DataError(
            f"{path}: is no translation of embeddings ({printable(error, 200)}); fit it again by a step "
            "`translate`"
        ) from error


def _require_map(matrix: NDArray[np.float64], offset: NDArray[np.float64], *sizes: object) -> None:
    """Raise ValueError unless a matrix [d, e] and an offset [e] are finite float64 of these sizes."""
    if matrix.shape != sizes or offset.shape != sizes[1:] or not matrix.size:
        raise ValueError(
            f"a matrix {matrix.shape} and an offset {offset.shape} do not lead between vectors of {sizes}"
        )
    for values in (matrix, offset):
        if values.dtype != np.float64 or not np.isfinite(values).all():
            raise ValueError(f"its {values.dtype} numbers are not all finite in float64")
