"""Comparison of stored vectors with the model that should have made them, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.data import read_texts
from emberge.numerics import spread_places
from emberge.wording import count_noun, join_some

from emberge_index.served.diagnosis import (
    Cause,
    Diagnosis,
    SentTexts,
    diagnose,
    list_causes_of_form,
)
from emberge_index.served.served_form import measure_form
from emberge_index.served.settings import OwnVectors, ServedSetting
from emberge_index.space import SAME
from emberge_index.vectors import plan_vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_index.space import ModelSpace
    from emberge_index.vectors import RewritePlan

# Rows of a block that is read.
_BLOCK = 4096
# Most of the differing rows that are used to find the cause.
_TRIED = 48
# Most places of differing rows that are printed.
_SHOWN = 8


@dataclass(frozen=True)
class StoredCheck:
    """Result of embedding the texts of stored rows again: the rows that differ, and why.

    `odd` are the places of rows that differ, from 0, and `interval` is the 95 % interval of their share of
    all rows. `form` are the causes by which all rows differ in their form, such as a prefix.
    """

    name: str
    file: str
    rows: int
    looked_at: int
    odd: tuple[int, ...]
    interval: tuple[float, float]
    diagnosis: Diagnosis | None
    form: tuple[Cause, ...] = ()

    @property
    def share(self) -> float:
        """Share of the rows that were looked at which are not the model's."""
        return len(self.odd) / self.looked_at

    def lines(self) -> Iterator[str]:
        """Yield the outcome for the terminal."""
        yield f"{self.name} and {self.file}: {count_noun(self.rows, 'vector')}, {self.looked_at:,} looked at"
        yield from (f"  all rows: {cause.name}: {cause.words}" for cause in self.form)
        low, high = self.interval
        bounds = "" if self.looked_at == self.rows else f" [{low:.1%}, {high:.1%}] of all"
        if not self.odd:
            most = "" if self.looked_at == self.rows else f", so at most {high:.1%} of all are not"
            yield f"same: all of them are the model's{most}"
            return
        yield f"  {count_noun(len(self.odd), 'row')} not the model's: {self.share:.1%}{bounds}"
        runs = _list_runs(self.odd, -(-self.rows // self.looked_at))
        yield f"  places, from 0: {join_some(runs, _SHOWN)}"
        found = self.diagnosis
        for cause in () if found is None else found.causes:
            yield f"  {cause.name}: {cause.words}"
        if found is not None and not found.causes:
            yield "  no cause that was tried explains them all; name other models by --candidates"
        yield "different: these rows are not the model's; embed their texts again"

    def plain(self) -> dict[str, Any]:
        """Return the outcome as values of JSON."""
        causes = [] if self.diagnosis is None else [asdict(one) for one in self.diagnosis.causes]
        return {
            "model": self.name,
            "vectors": self.file,
            "verdict": "different" if self.odd else "same",
            "rows": self.rows,
            "looked_at": self.looked_at,
            "share": self.share,
            "interval": list(self.interval),
            "places": list(self.odd),
            "causes": causes,
            "form": [asdict(one) for one in self.form],
        }


def check_stored(
    space: ModelSpace,
    texts: Path,
    vectors: Path,
    *,
    candidates: Sequence[ModelSpace] = (),
    ranges: Path | None = None,
    sample: int = 1000,
    queries: bool = False,
) -> StoredCheck:
    """Embed the texts of at most `sample` rows again, spread evenly, and compare them with the stored ones.

    `texts` has a line for each vector, in their order. `ranges` are those of int8 codes. By the rows that
    differ, the causes that `diagnose` knows are tried; all are expected to have the same.

    Raises:
        DataError: if the file has other than a vector for each text, or rows that are not finite.
        CheckpointError: if the space is a passport without its model, or the model cannot be read.
    """
    folders = [one.usable_folder for one in (space, *candidates)]
    plan = plan_vectors(vectors, dimension=1, ranges=ranges)
    every = read_texts(texts)
    if len(every) != plan.rows.rows:
        raise DataError(
            f"{vectors}: has {plan.rows.rows:,} vectors, and there are {len(every):,} texts; give --texts a "
            "line for each vector, in their order"
        )
    places = spread_places(len(every), sample)
    stored = _read_rows(plan, places)
    own = OwnVectors(folders, space.backbone, space.device)
    query, document = space.passport.prompts
    expected, other = (query, document) if queries else (document, query)
    picked = [every[place] for place in places]
    vectors_now = own.embed(picked, ServedSetting(expected))
    form, distances = measure_form(stored, vectors_now)
    odd = [number for number, distance in enumerate(distances) if not distance <= SAME]
    diagnosis = None
    if odd:
        tried = [odd[place] for place in spread_places(len(odd), _TRIED)]
        asked = SentTexts([picked[number] for number in tried], "", expected, other)
        names = [one.name for one in candidates]
        diagnosis = diagnose(stored[tried], asked, own, candidates=names)
    return StoredCheck(
        space.name,
        vectors.name,
        len(every),
        len(places),
        tuple(places[number] for number in odd),
        _find_interval(len(odd), len(places), len(every)),
        diagnosis,
        tuple(list_causes_of_form(form, vectors_now.shape[1])),
    )


def _read_rows(plan: RewritePlan, places: Sequence[int]) -> NDArray[np.float64]:
    """Return the rows at ascending places, in float64.

    Raises:
        DataError: if one is not finite.
    """
    import numpy as np

    wanted, parts, first = np.asarray(places), [], 0
    for block in plan.rows.blocks(0, _BLOCK):
        inside = wanted[(wanted >= first) & (wanted < first + len(block))] - first
        parts.append(np.asarray(block[inside], np.float64))
        first += len(block)
    rows = np.concatenate(parts)
    broken = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(broken):
        raise DataError(
            f"{plan.path}: row {plan.rows.name_of(int(wanted[broken[0]]))} is not finite; embed its text "
            "again"
        )
    return rows


def _find_interval(count: int, looked_at: int, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, 1927); the share itself if all rows were looked at."""
    share = count / looked_at
    if looked_at == rows:
        return share, share
    z = NormalDist().inv_cdf(0.975)
    scale = 1 + z * z / looked_at
    middle = (share + z * z / (2 * looked_at)) / scale
    half = z / scale * (share * (1 - share) / looked_at + (z / (2 * looked_at)) ** 2) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def _list_runs(places: Sequence[int], step: int) -> list[str]:
    """Return ascending places as text, with runs of places at most `step` apart joined: `40 to 60`."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place - runs[-1][1] <= step:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in runs]
