"""Affine maps from one model's vectors to another's, fitted in closed form in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Kind = Literal["affine", "orthogonal", "shift", "low_rank", "added_layer"]


@dataclass(frozen=True, eq=False)
class Map:
    """Affine map: a vector x becomes `x @ matrix + offset`, matrix float64 [d, k] and offset [k]."""

    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]

    def __call__(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        """Return mapped vectors, float64 [n, k]."""
        import numpy as np

        return np.asarray(vectors, np.float64) @ self.matrix + self.offset


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over pairs of vectors (x, y) that are sufficient for a fit, of constant size.

    `x` and `y` are sums of vectors, `xx` [d, d] and `xy` [d, k] of outer products, `yy` of squared lengths.
    """

    count: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    xx: NDArray[np.float64]
    xy: NDArray[np.float64]
    yy: float

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any]) -> Moments:
        """Return the sums over the rows of x [n, d] and y [n, k]."""
        import numpy as np

        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, float((y * y).sum()))

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.count + other.count,
            self.x + other.x,
            self.y + other.y,
            self.xx + other.xx,
            self.xy + other.xy,
            self.yy + other.yy,
        )

    @property
    def variance(self) -> float:
        """Mean over dimensions of the sum of squared deviations of x: the unit of a ridge."""
        import numpy as np

        centred = np.trace(self.xx) - float(self.x @ self.x) / self.count
        return float(centred) / len(self.x)

    def squared_error(self, fitted: Map) -> float:
        """Return the sum of squared distances between the mapped x and y."""
        import numpy as np

        matrix, offset = fitted.matrix, fitted.offset
        mapped = matrix.T @ self.x
        mapped_squares = float(np.vdot(matrix, self.xx @ matrix) + 2 * (offset @ mapped))
        cross = float(np.vdot(matrix, self.xy) + offset @ self.y)
        return mapped_squares + self.count * float(offset @ offset) - 2 * cross + self.yy


def fit_map(sums: Moments, kind: Kind, *, ridge: float = 0.0, rank: int = 0) -> Map:
    """Return the map of a kind with the least squared error, fitted after removing both means.

    `ridge` is in units of `Moments.variance`, so its strength does not depend on the number of texts.

    Raises:
        DataError: if there are no texts, or no unique map of finite numbers fits the vectors.
    """
    import numpy as np

    if not sums.count:
        raise DataError(
            "no texts are left to fit a map on, as equal texts share a fold and so may others by chance; "
            "give more texts"
        )
    try:
        fitted = _fit_kind(sums, kind, ridge, rank)
    except np.linalg.LinAlgError as error:
        raise DataError(f"{_NO_MAP} ({error}); {_REMEDY}") from error
    if not (np.isfinite(fitted.matrix).all() and np.isfinite(fitted.offset).all()):
        raise DataError(f"{_NO_MAP}: its numbers are not finite; {_REMEDY}")
    return fitted


_NO_MAP = "there is no single map between the vectors of these texts"
_REMEDY = "give more different texts, or a ridge above 0, such as ridge: auto"


def _fit_kind(sums: Moments, kind: Kind, ridge: float, rank: int) -> Map:
    import numpy as np

    mean_x, mean_y = sums.x / sums.count, sums.y / sums.count
    xy = sums.xy - np.outer(sums.x, mean_y)
    if kind == "shift":
        matrix = np.eye(len(mean_x))
    elif kind == "orthogonal":
        # Procrustes: the polar factor of the cross-covariance (Schönemann, 1966).
        left, _, right = np.linalg.svd(xy, full_matrices=False)
        matrix = left @ right
    else:
        xx = sums.xx - np.outer(sums.x, mean_x)
        matrix = _fit_ridge(xx, xy, ridge * sums.variance, rank if kind == "low_rank" else None)
    return Map(matrix, mean_y - mean_x @ matrix)


def _fit_ridge(
    xx: NDArray[np.float64], xy: NDArray[np.float64], penalty: float, rank: int | None
) -> NDArray[np.float64]:
    """Return the matrix of a ridge regression towards the identity, or towards zero if dimensions differ.

    With `rank` the matrix' difference from the identity or zero has this rank: reduced-rank regression, which
    projects the fitted values on their first principal axes (Izenman, 1975).
    """
    import numpy as np

    target = np.eye(*xy.shape) if xy.shape[0] == xy.shape[1] else np.zeros(xy.shape)
    penalised = xx + penalty * np.eye(len(xx))
    change = np.linalg.solve(penalised, xy - xx @ target)
    if rank is not None and rank < min(xy.shape):
        _, axes = np.linalg.eigh(change.T @ penalised @ change)
        first = axes[:, -rank:]
        change = change @ first @ first.T
    return target + np.asarray(change, np.float64)
