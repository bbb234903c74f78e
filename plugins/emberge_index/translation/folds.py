"""Cross-validation over texts: the choice of the ridge, and out-of-fold vectors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from emberge_index.translation.maps import Kind, Map, Moments, fit_map

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FOLDS = 5
# Vectors that are looked at together.
PIECE = 4096
# Ridges that are tried, in units of the mean variance: three a decade.
RIDGES = tuple(10 ** (step / 3) for step in range(-18, 10))


class Paired(Protocol):
    """Vectors of texts, float32 [n, d], indexed by text number, in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Any) -> NDArray[np.float32]: ...


@dataclass(frozen=True, eq=False)
class FittedFolds:
    """Map fitted on all texts, and each text's vector [n, k] by a map fitted without it."""

    fitted: Map
    ridge: float | None
    out_of_fold: NDArray[np.float32]


def folds_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the fold of each text, 0 to FOLDS - 1, by a hash of the text: equal texts share a fold."""
    import numpy as np
    from emberge.hashes import text_keys

    keys = np.frombuffer(text_keys(texts), "<u8").reshape(-1, 2)
    return (keys[:, 0] % FOLDS).astype(np.int64)


def few_texts(count: int, dimension: int, kind: Kind, ridge: float | Literal["auto"]) -> str | None:
    """Return the problem of a fit with too few texts for its dimension; None if there are enough."""
    is_unlimited = kind in ("shift", "added_layer") or (kind != "orthogonal" and ridge != 0)
    enough = max(FOLDS, 2) if is_unlimited else dimension * FOLDS // (FOLDS - 1) + 2
    if count >= enough:
        return None
    advice = (
        "give more texts"
        if is_unlimited
        else "give more texts, kind: shift, or kind: affine with ridge: auto"
    )
    return (
        f"{count:,} texts are too few: {kind} without a ridge between vectors of {dimension:,} numbers, "
        f"measured in {FOLDS} folds, needs {enough:,}; {advice}"
        if not is_unlimited
        else f"{count:,} texts are too few for {FOLDS} folds; {advice}"
    )


def fit_folds(
    source: Paired,
    target: Paired,
    folds: NDArray[np.int64],
    kind: Kind,
    *,
    ridge: float | Literal["auto"] = "auto",
    rank: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> FittedFolds:
    """Fit a map on all texts, and one without each fold; return the map and out-of-fold vectors."""
    parts = _sum_by_fold(source, target, folds)
    training_moments = [_add_moments(parts[:fold] + parts[fold + 1 :]) for fold in range(FOLDS)]
    chosen_ridge = _choose_ridge(parts, training_moments, kind, ridge, rank, progress)
    maps = [fit_map(sums, kind, ridge=chosen_ridge or 0.0, rank=rank) for sums in training_moments]
    fitted = fit_map(_add_moments(parts), kind, ridge=chosen_ridge or 0.0, rank=rank)
    return FittedFolds(fitted, chosen_ridge, _map_out_of_fold(source, folds, maps))


def keep_map(known: Map, source: Paired) -> FittedFolds:
    """Return a map that was not fitted, with each text's vector by it."""
    import numpy as np

    return FittedFolds(
        known, None, _map_out_of_fold(source, np.zeros(len(source), np.int64), [known])
    )


def _sum_by_fold(source: Paired, target: Paired, folds: NDArray[np.int64]) -> list[Moments]:
    import numpy as np

    sums: list[Moments] = []
    for fold in range(FOLDS):
        places = np.flatnonzero(folds == fold)
        pieces = [places[first : first + PIECE] for first in range(0, len(places), PIECE)]
        sums.append(
            _add_moments([Moments.of(source[piece], target[piece]) for piece in pieces or [places]])
        )
    return sums


def _add_moments(parts: Sequence[Moments]) -> Moments:
    return functools.reduce(operator.add, parts)


def _choose_ridge(
    parts: Sequence[Moments],
    training_moments: Sequence[Moments],
    kind: Kind,
    ridge: float | Literal["auto"],
    rank: int,
    progress: Callable[[int, int], None] | None,
) -> float | None:
    """Return the ridge with the least squared error over the folds; among equal errors, the largest ridge."""
    if kind in ("shift", "orthogonal"):
        return None
    if ridge != "auto":
        return float(ridge)
    errors = []
    for number, candidate in enumerate(RIDGES):
        if progress is not None:
            progress(number, len(RIDGES))
        maps = [fit_map(sums, kind, ridge=candidate, rank=rank) for sums in training_moments]
        errors.append(
            sum(part.squared_error(fitted) for part, fitted in zip(parts, maps, strict=True))
        )
    return min(zip(errors, [-candidate for candidate in RIDGES], strict=True))[1] * -1


def _map_out_of_fold(
    source: Paired, folds: NDArray[np.int64], maps: Sequence[Map]
) -> NDArray[np.float32]:
    import numpy as np

    mapped = np.empty((len(folds), len(maps[0].offset)), np.float32)
    for start in range(0, len(folds), PIECE):
        part = slice(start, start + PIECE)
        vectors, own_folds = source[part], folds[part]
        for fold, fitted in enumerate(maps):
            mapped[part][own_folds == fold] = fitted(vectors[own_folds == fold])
    return mapped
