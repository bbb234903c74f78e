"""Mapping of blocks of vectors in a file's number type, normalised if the new model's vectors are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from emberge_index.vectors.codes import find_type_and_width

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_index.translation import Translation
    from emberge_index.vectors.codes import Codec


class Mapped(NamedTuple):
    """Mapped vectors of a block, with whether all are finite, and the number of zero vectors."""

    vectors: NDArray[Any]
    finite: bool
    empty: int


class Mapper:
    """Translation that computes in float64 for a float64 file, and in float32 for other files.

    With a `codec` the mapped vectors are written in its form.
    """

    def __init__(
        self, translation: Translation, dtype: np.dtype[Any], codec: Codec | None = None
    ) -> None:
        import numpy as np

        self._computed, self._codec = dtype, codec
        self._own = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
        self._split_matrix = [factor.astype(self._own) for factor in _split_matrix(translation)]
        self._is_change = len(self._split_matrix) == 2
        self._offset = translation.fitted.offset.astype(self._own)
        self._normalise = translation.header.target.normalised

    @property
    def dimension(self) -> int:
        """Size of a mapped vector."""
        return len(self._offset)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type of what is written."""
        return self._written[0]

    @property
    def width(self) -> int:
        """Number of what is written for a vector: bits are eight in a byte."""
        return self._written[1]

    @property
    def _written(self) -> tuple[np.dtype[Any], int]:
        kind = None if self._codec is None else self._codec.kind
        return find_type_and_width(kind, self._computed, self.dimension)

    def __call__(self, block: NDArray[Any]) -> Mapped:
        """Return the mapped vectors of a block; zero vectors (of empty documents) stay zero."""
        import numpy as np

        with np.errstate(invalid="ignore", over="ignore"):
            mapped = originals = block.astype(self._own, copy=False)
            for factor in self._split_matrix:
                mapped = mapped @ factor
            if self._is_change:
                mapped += originals
            mapped += self._offset
            squares = np.einsum("ij,ij->i", mapped, mapped)
            if self._normalise:
                mapped /= np.sqrt(np.where(squares > 0, squares, 1))[:, None]
            is_zero = ~originals.any(axis=1)
            mapped[is_zero] = 0
            vectors = mapped.astype(self._computed, copy=False)
            checked = squares if self._computed.itemsize > 2 else vectors  # float16 ends at 65,504
            if self._codec is not None:
                vectors = self._codec.encode(vectors)
            return Mapped(vectors, bool(np.isfinite(checked).all()), int(is_zero.sum()))


# Singular values below this share are rounding errors of a fit in float64, not part of the rank.
_ROUNDED = 1e-9


def _split_matrix(translation: Translation) -> list[NDArray[np.float64]]:
    """Return the matrix, or two narrow factors of its difference from the identity, if they are cheaper."""
    import numpy as np

    matrix, rank = translation.fitted.matrix, translation.header.rank
    if rank is None or matrix.shape[0] != matrix.shape[1] or 2 * rank >= len(matrix):
        return [matrix]
    left, sizes, right = np.linalg.svd(matrix - np.eye(len(matrix)))
    if sizes[rank] > _ROUNDED * max(1.0, sizes[0]):
        return [matrix]  # it is of another rank than its header claims
    return [left[:, :rank] * sizes[:rank], right[:rank]]
