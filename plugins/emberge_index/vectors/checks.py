"""Checks of a file of vectors against a translation: its header, a sample of its rows, and mapped blocks.

All that reads vectors for a translation opens them by `open_fitting` and maps them by `map_blocks`, so that
all of it refuses the same files with the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emberge import DataError
from emberge.wording import printable

from emberge_index.translation import are_unit, read_translation
from emberge_index.vectors.codes import CodedRows, CodeKind
from emberge_index.vectors.mapper import Mapped, Mapper
from emberge_index.vectors.open_vectors import plan_vectors
from emberge_index.vectors.pieces import (
    FileRows,
    RewritePlan,
    VectorSource,
    mark_of,
    require_finite,
)
from emberge_index.vectors.scalar_codes import ScalarRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from emberge_index.translation import Side, SpaceOf, Translation


# Rows of the sample, and the number of places in the file that they are read from.
SAMPLE, PLACES = 1024, 16
# Times the usual distance that are too many. MiniLM fitted on docstrings of numpy and others: 1 for those,
# 2.7 for other docstrings, 3.3 for random words, 4.8 for German, and 6.1 for the same vectors rotated, as
# another model's are. So a language that the fit has not seen looks foreign, too.
STRANGE = 3.5
# Largest distance from length 1 of vectors that have it: as floats, and decoded from int8.
_UNIT, _CODED = 5e-3, 5e-2


class FittingVectors(NamedTuple):
    """Vectors of a translation's old model: how their file is rewritten, and the translation."""

    plan: RewritePlan
    translation: Translation


def open_fitting(
    vectors: Path,
    by: Path,
    column: str | None = None,
    *,
    any_model: bool = False,
    ranges: Path | None = None,
    kind: CodeKind | None = None,
) -> FittingVectors:
    """Return the plan to rewrite a file of vectors by the translation in `by`, once they fit each other.

    `any_model` accepts vectors that look like another model's, as vectors of very different texts may. For
    `ranges` and `kind` see `plan_vectors`.

    Raises:
        DataError: if there is no translation, the file cannot be read, or its vectors have another dimension,
            model, side or length.
        RecipeError: if the file's suffix is unknown, or a column is given for a file without columns.
    """
    translation = read_translation(by)
    header = translation.header
    plan = plan_vectors(
        vectors,
        column,
        dimension=header.target.dimension,
        mark=mark_of(header),
        ranges=ranges,
        kind=kind,
    )
    _require_fitting(plan, translation, any_model)
    return FittingVectors(plan, translation)


class MappedBlock(NamedTuple):
    """Block of a file's vectors, as they are and mapped, from row `first` on."""

    first: int
    originals: NDArray[Any]
    mapped: Mapped


def map_blocks(
    plan: RewritePlan,
    mapper: Mapper,
    blocks: Iterator[NDArray[Any]],
    size: int,
    first: int = 0,
) -> Iterator[MappedBlock]:
    """Yield the blocks of a file, of `size` rows from `first` on, with their mapped vectors.

    Raises:
        DataError: if rows are not finite, before or after the map; names those that were not before.
    """
    for block in blocks:
        mapped = mapper(block)
        if not mapped.finite:
            require_finite(plan.path, plan.rows, size, first)
            raise DataError(
                f"{plan.path}: mapped vectors are not finite in {mapper.dtype.name}; convert it to float32 "
                "first, or fit the translation again"
            )
        yield MappedBlock(first, block, mapped)
        first += len(block)


def _require_fitting(plan: RewritePlan, translation: Translation, any_model: bool) -> None:
    """Refuse vectors that a translation was not fitted for."""
    header = translation.header
    sample = require_space(plan, header.source, header.side, other=header.target)
    if not len(sample):
        return
    strangeness = translation.strangeness(sample)
    if not strangeness <= STRANGE and not any_model:
        raise DataError(
            f"{plan.path}: its vectors are {strangeness:.1f} times as far from those of "
            f"{header.source.name} as new texts of the fit are, so they are another model's or of quite "
            "other texts; fit a translation from their model and on such texts, or add --any-model if you "
            f"know that the model is the same{_doubt_ranges(plan.rows)}"
        )


def require_space(
    plan: RewritePlan, space: SpaceOf, side: Side, *, other: SpaceOf | None = None
) -> NDArray[Any]:
    """Refuse vectors outside a model's space, and return a sample of the vectors.

    `other` is the space to name in the error if the vectors belong to it.

    Raises:
        DataError: if the vectors have another dimension or length, or a mark that names another model or
            side.
    """
    _require_dimension(plan, space, other)
    _require_marked(plan, space, side, other)
    sample = _sample_rows(plan.rows)
    if len(sample):
        _require_length(plan, space, sample)
    return sample


def _require_dimension(plan: RewritePlan, space: SpaceOf, other: SpaceOf | None) -> None:
    dimension = plan.rows.dimension
    if dimension != space.dimension:
        embed_again = ""
        if other is not None and dimension == other.dimension:
            embed_again = f"; {other.name} has {dimension:,}: it seems to be translated already"
        raise DataError(
            f"{plan.path}: its vectors have {dimension:,} numbers, those of {space.name} "
            f"{space.dimension:,}{embed_again}"
        )


def _require_marked(plan: RewritePlan, space: SpaceOf, side: Side, other: SpaceOf | None) -> None:
    """Refuse a file of vectors whose mark names another model or side."""
    if plan.fingerprint is not None and plan.fingerprint != space.fingerprint:
        mismatch = "another model"
        if other is not None and plan.fingerprint == other.fingerprint:
            mismatch = f"{other.name}, so it is translated already"
        raise DataError(
            f"{plan.path}: its vectors are marked as those of {mismatch}, and wanted are those of "
            f"{space.name} ({printable(space.fingerprint[:12])}); embed the texts by it, or fit "
            "a translation from the model that they are of"
        )
    if plan.side is not None and plan.side != side:
        raise DataError(
            f"{plan.path}: its vectors are marked as {printable(plan.side, 20)}, and wanted are {side}; give "
            f"those, or fit a translation with texts: {printable(plan.side, 20)}"
        )


def _require_length(plan: RewritePlan, space: SpaceOf, sample: NDArray[Any]) -> None:
    # Rounding to codes moves each length by about a hundredth.
    unit = are_unit(sample, _CODED if isinstance(plan.rows, CodedRows | ScalarRows) else _UNIT)
    if unit == space.normalised:
        return
    if unit:
        raise DataError(
            f"{plan.path}: its vectors have length 1, those of {space.name} in the translation have "
            "not; fit it on a model with a Normalize module, or store vectors as the model gives them"
        )
    raise DataError(
        f"{plan.path}: its vectors do not have length 1, those of {space.name} do; divide each by "
        f"its length first{_doubt_ranges(plan.rows)}"
    )


def _doubt_ranges(rows: VectorSource) -> str:
    """Return the words for vectors that ranges of another model give; of floats none."""
    if not isinstance(rows, CodedRows):
        return ""
    return (
        "; or the --ranges are another model's, and those are wanted that the codes were made with"
    )


def _sample_rows(rows: VectorSource) -> NDArray[Any]:
    """Return rows from evenly spaced parts of the file, or its first rows if it is only read in order."""
    import numpy as np

    stored = rows.codes if isinstance(rows, CodedRows) else rows
    if not isinstance(stored, FileRows):
        head_rows = next(iter(rows.blocks(0, SAMPLE)), np.zeros((0, rows.dimension)))
        return _drop_unfit_rows(head_rows)
    size = SAMPLE // PLACES
    count = -(-rows.rows // size)
    places = sorted({int(row) * size for row in np.linspace(0, max(0, count - 1), PLACES)})
    blocks = [next(iter(rows.blocks(row, size)), None) for row in places]
    parts = [one for one in blocks if one is not None]
    return _drop_unfit_rows(np.concatenate(parts)) if parts else np.zeros((0, rows.dimension))


def _drop_unfit_rows(sample: NDArray[Any]) -> NDArray[Any]:
    """Return the rows that are finite and not zero; the other rows are reported later."""
    import numpy as np

    fit_rows: NDArray[Any] = sample[np.isfinite(sample).all(axis=1) & sample.any(axis=1)]
    return fit_rows
