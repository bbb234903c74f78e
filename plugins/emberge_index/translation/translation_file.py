"""File of a translation: a map in safetensors format, whose header names both models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import DataError
from emberge.wording import printable

from emberge_index.translation.maps import Map

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FILE = "translation.safetensors"
_KEY = "translation"


@dataclass(frozen=True, slots=True)
class SpaceOf:
    """Facts of a model's vectors of documents or queries, stored with the translation."""

    name: str
    fingerprint: str
    prompt: str
    dimension: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class TranslationHeader:
    """Facts of a translation: its source vectors, its target vectors, and its fit."""

    kind: str
    side: Literal["documents", "queries"]
    source: SpaceOf
    target: SpaceOf
    texts: int
    ridge: float | None = None
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class Translation:
    """Map with its facts, and with mean and spread of its source vectors, to detect foreign vectors."""

    header: TranslationHeader
    fitted: Map
    mean: NDArray[np.float64]
    axes: NDArray[np.float32]
    usual: float

    def strangeness(self, vectors: NDArray[Any]) -> float:
        """Return the relative distance of vectors from the vectors of the fit: about 1 for the same model.

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
    """Return the mean squared Mahalanobis distance of vectors from a mean, whitened by `axes` [d, d]."""
    import numpy as np

    white = (np.asarray(vectors, np.float64) - mean) @ np.asarray(axes, np.float64)
    return float((white * white).sum(1).mean())


def are_unit(vectors: NDArray[Any], tolerance: float = 5e-3) -> bool:
    """Return whether all vectors except zeros have length 1, up to `tolerance` for float16 and rounding."""
    import numpy as np

    rows = np.asarray(vectors, np.float64)
    lengths = np.sqrt((rows * rows).sum(1))
    return bool((np.abs(lengths[lengths > 0] - 1) < tolerance).all())


def read_translation(source: Path) -> Translation:
    """Return the translation in a file, or in the result folder of a step.

    Raises:
        DataError: if there is no translation, or if its facts or numbers are invalid.
    """
    from emberge.encoding import read_space_map
    from safetensors import SafetensorError, safe_open

    space_map = read_space_map(source)
    path = source / FILE if source.is_dir() else source
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = _read_header(json.loads(file.metadata()[_KEY]))
            source_tensors = [
                file.get_tensor(f"source.{name}") for name in ("mean", "axes", "usual")
            ]
        usual_distance = _check_usual(*source_tensors, size=len(space_map.matrix))
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is no translation ({printable(error, 200)}); fit it again by a step `translate`"
        ) from error
    return Translation(
        header,
        Map(space_map.matrix, space_map.offset),
        source_tensors[0],
        source_tensors[1],
        usual_distance,
    )


def _read_header(content: Any) -> TranslationHeader:
    """Return the facts in a file's header with printable names; raise ValueError or TypeError if invalid."""
    header = TranslationHeader(
        **{
            **content,
            "source": _read_space(content["source"]),
            "target": _read_space(content["target"]),
        }
    )
    rank, ridge = header.rank, header.ridge
    is_sound = header.side in ("documents", "queries") and isinstance(header.kind, str)
    is_sound &= isinstance(header.texts, int) and (rank is None or (type(rank) is int and rank > 0))
    if not is_sound or not (ridge is None or isinstance(ridge, (int, float))):
        raise ValueError("its header has values of another kind")
    return header


def _read_space(content: Any) -> SpaceOf:
    space = SpaceOf(**content)
    texts = (space.name, space.fingerprint, space.prompt)
    if not all(isinstance(text, str) for text in texts) or not isinstance(space.normalised, bool):
        raise ValueError("its header has values of another kind")
    return replace(space, name=printable(space.name, 200))


def _check_usual(
    mean: NDArray[Any], axes: NDArray[Any], usual: NDArray[Any], *, size: int
) -> float:
    """Return the usual distance of the source's vectors; raise ValueError if the facts are invalid."""
    import numpy as np

    if mean.shape != (size,) or axes.shape != (size, size) or usual.shape != (1,):
        raise ValueError("what it knows of the source has another size")
    distance = float(usual[0])
    if not (np.isfinite(mean).all() and np.isfinite(axes).all() and 0 < distance < float("inf")):
        raise ValueError("what it knows of the source is not finite")
    return distance
