"""A translation on disk: a safetensors file of a map, whose header names both models."""

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
    """Facts of a model's vectors of one side, known without the model."""

    name: str
    fingerprint: str
    prompt: str
    dimension: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class TranslationHeader:
    """Facts of a translation: the vectors that it reads, those that it writes, and its fit."""

    kind: str
    side: Literal["documents", "queries"]
    source: SpaceOf
    target: SpaceOf
    texts: int
    ridge: float | None = None
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class Translation:
    """Map with its facts, and the mean and spread of the source's vectors, by which foreign ones show."""

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


def are_unit(vectors: NDArray[Any], within: float = 5e-3) -> bool:
    """Return whether all vectors but those of zeros have length 1; float16 and rounding err by `within`."""
    import numpy as np

    found = np.asarray(vectors, np.float64)
    lengths = np.sqrt((found * found).sum(1))
    return bool((np.abs(lengths[lengths > 0] - 1) < within).all())


def read_translation(place: Path) -> Translation:
    """Read a translation from its file, or from the folder of a step that has left one.

    Raises:
        DataError: when there is none, or one with facts or numbers that no translation has.
    """
    from emberge.encoding import read_space_map
    from safetensors import SafetensorError, safe_open

    found = read_space_map(place)
    path = place / FILE if place.is_dir() else place
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = _read_header(json.loads(file.metadata()[_KEY]))
            known = [file.get_tensor(f"source.{name}") for name in ("mean", "axes", "usual")]
        usual = _check_usual(*known, size=len(found.matrix))
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is no translation ({printable(error, 200)}); fit it again by a step `translate`"
        ) from error
    return Translation(header, Map(found.matrix, found.offset), known[0], known[1], usual)


def _read_header(found: Any) -> TranslationHeader:
    """Return the facts of a file, with names that can be shown; raise ValueError or TypeError for others."""
    header = TranslationHeader(
        **{**found, "source": _read_space(found["source"]), "target": _read_space(found["target"])}
    )
    rank, ridge = header.rank, header.ridge
    known = header.side in ("documents", "queries") and isinstance(header.kind, str)
    known &= isinstance(header.texts, int) and (rank is None or (type(rank) is int and rank > 0))
    if not known or not (ridge is None or isinstance(ridge, (int, float))):
        raise ValueError("its header has values of another kind")
    return header


def _read_space(found: Any) -> SpaceOf:
    space = SpaceOf(**found)
    texts = (space.name, space.fingerprint, space.prompt)
    if not all(isinstance(one, str) for one in texts) or not isinstance(space.normalised, bool):
        raise ValueError("its header has values of another kind")
    return replace(space, name=printable(space.name, 200))


def _check_usual(
    mean: NDArray[Any], axes: NDArray[Any], usual: NDArray[Any], *, size: int
) -> float:
    """Return the usual distance; raise ValueError where what is known of the source is not sound."""
    import numpy as np

    if mean.shape != (size,) or axes.shape != (size, size) or usual.shape != (1,):
        raise ValueError("what it knows of the source has another size")
    found = float(usual[0])
    if not (np.isfinite(mean).all() and np.isfinite(axes).all() and 0 < found < float("inf")):
        raise ValueError("what it knows of the source is not finite")
    return found
