"""Comparison of two embedding spaces: same, translatable with the error of a fit, or foreign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import DataError
from emberge.numerics import unit_rows

from emberge_index.translation import are_unit, few_texts, fit_folds, folds_of

if TYPE_CHECKING:
    from emberge_index.space.canaries import Canaries
    from emberge_index.space.passport import Passport


# Largest distance of a text's two vectors, as a share of their length, in one space: a cosine of 0.998.
SAME = 0.0632
# Least share of texts whose translated vector is nearest to their own true vector.
FOUND = 0.9
# Distance from length one of vectors that other tools have rounded.
_ROUNDED = 1e-2

SpaceVerdict = Literal["same", "translatable", "foreign"]


@dataclass(frozen=True)
class FitError:
    """Error of an affine map between two embedding spaces, on texts that the map was not fitted on.

    `cosine` is the mean cosine between a text's translated and true vector. `found` is the share of the
    `texts` for which the true vector of the same text is nearest to the translated one. `before` is the mean
    cosine without a map; None if the spaces have different dimensions.
    """

    texts: int
    cosine: float
    found: float
    ridge: float | None
    before: float | None = None


def verdict_of(distance: float | None, fit: FitError | None) -> SpaceVerdict:
    """Return the verdict on two spaces from the distance of their canary vectors and the error of a fit."""
    if distance is not None and distance <= SAME:
        return "same"
    return "translatable" if fit is not None and fit.found >= FOUND else "foreign"


def canary_distance(first: Canaries, second: Canaries, side: str = "document") -> float | None:
    """Return the largest distance of two models' vectors of a canary text; None if sizes differ."""
    return largest_distance(
        *(canaries.get(side, canaries["document"]) for canaries in (first, second))
    )


def largest_distance(first: Any, second: Any) -> float | None:
    """Return the largest distance of paired rows, relative to the longer row; None if their sizes differ."""
    import numpy as np

    if first.shape != second.shape:
        return None
    lengths = np.maximum(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    distances = np.linalg.norm(np.asarray(first, np.float64) - second, axis=1)
    return float((distances / np.maximum(lengths, 1e-30)).max())


def fit_error(texts: Sequence[str], source: Any, target: Any) -> FitError:
    """Return the out-of-fold error of the best affine map from `source` [n, d] to `target` [n, e].

    Raises:
        DataError: if the texts are too few to measure the error.
    """
    import numpy as np

    problem = few_texts(len(texts), source.shape[1], "affine", "auto")
    if problem is not None:
        raise DataError(problem)
    folds = fit_folds(source, target, folds_of(texts), "affine")
    translated, targets = (
        unit_rows(np.asarray(rows, np.float64)) for rows in (folds.out_of_fold, target)
    )
    cosines = translated @ targets.T
    own_similarity = cosines.diagonal().copy()
    np.fill_diagonal(cosines, -2.0)
    share_found = float((own_similarity > cosines.max(1)).mean())
    before = None
    if source.shape == target.shape:
        before = float((unit_rows(np.asarray(source, np.float64)) * targets).sum(1).mean())
    return FitError(len(texts), float(own_similarity.mean()), share_found, folds.ridge, before)


def require_passport(path: Path, rows: Any, passport: Passport, name: str) -> None:
    """Check that all nonzero vectors have the size and norm that the passport (space.json) states.

    Raises:
        DataError: if vectors have another size or norm.
    """
    if passport.dimension is not None and rows.shape[1] != passport.dimension:
        raise DataError(
            f"{path}: vectors of {rows.shape[1]} numbers are not those of {name}, which has "
            f"{passport.dimension}; name the model that they were made by"
        )
    unit = are_unit(rows, _ROUNDED)
    if passport.normalised and not unit:
        raise DataError(
            f"{path}: its vectors are not of length one, and {name} normalises; bring them to length one, or "
            "name the model that they were made by"
        )
    if unit and not passport.normalised and passport.similarity != "cosine":
        raise DataError(
            f"{path}: its vectors are of length one, and {name} does not normalise and compares by "
            f"{passport.similarity}; embed the texts again without normalising"
        )


def require_sample(path: Path, sample: Any, documents: Any, queries: Any | None, name: str) -> None:
    """Check that a sample of stored vectors equals the model's embeddings of their texts.

    Raises:
        DataError: if the vectors are those of queries, or of another model.
    """
    unit = [unit_rows(rows) for rows in (sample, documents)]
    distance = largest_distance(*unit)
    if distance is None or distance <= SAME:
        return
    if queries is not None and (largest_distance(unit[0], unit_rows(queries)) or 0.0) <= SAME:
        raise DataError(
            f"{path}: its vectors are those of queries of {name}, not of documents: the prompts were "
            "mixed up; embed the texts again with the prompt for documents"
        )
    raise DataError(
        f"{path}: its vectors are not those of {name}: of a sample of {len(sample)} texts one is "
        f"{distance:.0%} of its length away; name the model that they were made by, or give the texts in "
        "their order"
    )
