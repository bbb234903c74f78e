"""A translation on disk: a safetensors file of a map, whose header names both models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import CheckpointError

from emberge_index.translation.maps import Map

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FILE", "SpaceOf", "Translation", "TranslationHeader", "read_translation"]

FILE = "translation.safetensors"
_KEY = "translation"


@dataclass(frozen=True, slots=True)
class SpaceOf:
    """The vectors of one side of a model: what is known of them without the model."""

    name: str
    fingerprint: str
    prompt: str
    dimension: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class TranslationHeader:
    """The facts of a translation: the vectors that it reads, those that it writes, and its fit."""

    kind: str
    side: Literal["documents", "queries"]
    source: SpaceOf
    target: SpaceOf
    texts: int
    ridge: float | None = None
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class Translation:
    """A map with its facts; `known` are what the source's vectors were like, to see foreign ones."""

    header: TranslationHeader
    fitted: Map
    mean: NDArray[np.float64]
    axes: NDArray[np.float32]
    usual: float

    def strangeness(self, vectors: NDArray[Any]) -> float:
        """Return how far vectors are from the fit's, in units of those: about 1 for the same model.

        It is the mean squared Mahalanobis distance, by a covariance shrunk towards a multiple of the
        identity.
        """
        return mahalanobis(vectors, self.mean, self.axes) / self.usual

    def write(self, folder: Path, provenance: Mapping[str, Any]) -> Path:
        """Write the file into a folder and return its path."""
        import numpy as np
        from safetensors.numpy import save_file

        tensors = {
            "matrix": np.ascontiguousarray(self.fitted.matrix),
            "offset": self.fitted.offset,
            "source.mean": self.mean,
            "source.axes": np.ascontiguousarray(self.axes),
            "source.usual": np.array([self.usual]),
        }
        header = {
            _KEY: json.dumps(asdict(self.header)),
            "emberge": json.dumps(provenance, default=str),
        }
        save_file(tensors, folder / FILE, metadata=header)
        return folder / FILE


def mahalanobis(
    vectors: NDArray[Any], mean: NDArray[np.float64], axes: NDArray[np.float32]
) -> float:
    """Return the mean squared length of vectors about a mean, whitened by `axes` [d, d]."""
    import numpy as np

    white = (np.asarray(vectors, np.float64) - mean) @ np.asarray(axes, np.float64)
    return float((white * white).sum(1).mean())


def read_translation(place: Path) -> Translation:
    """Read a translation from its file, or from the folder of a step that has left one.

    Raises:
        CheckpointError: when there is none.
    """
    from safetensors import SafetensorError, safe_open

    path = place / FILE if place.is_dir() else place
    if not path.is_file():
        raise CheckpointError(
            f"{place}: has no {FILE}; name the result of a step `translate`, such as out/{{its id}}"
        )
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: is no translation ({error}); fit it again") from error
    header["source"], header["target"] = SpaceOf(**header["source"]), SpaceOf(**header["target"])
    return Translation(
        TranslationHeader(**header),
        Map(tensors["matrix"], tensors["offset"]),
        tensors["source.mean"],
        tensors["source.axes"],
        float(tensors["source.usual"][0]),
    )
