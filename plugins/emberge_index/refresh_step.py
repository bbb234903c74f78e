"""The `refresh` step: the kept gain as a function of the share of documents embedded again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import Artifact, ArtifactKind, DataError, Preflight, Problem, Share, Workspace
from emberge.contracts import StoredForm
from emberge.numerics import unit_rows
from emberge.wording import table_lines

from emberge_index.translation import Translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from emberge.encoding import Int8Ranges, QuantisedVectors
    from numpy.typing import NDArray

    from emberge_index.translation import Fit


@dataclass(frozen=True, kw_only=True)
class Refresh(Translate):
    """Curve of the kept gain over the share of documents that are embedded again, for three orders.

    A translation is fitted as in the step `translate`, and translates documents that it was not fitted on.
    Then a growing share of these vectors is replaced by the new model's, in three orders: the documents that
    queries hit most first (`hits`), the documents least similar to the texts that the translation was fitted
    on first (`strange`), and at random. Half of the queries serve as the log that determines the hits; the
    other half is scored by nDCG@10. The kept gain is (mixed - old) / (new - old). The verb `emberge refresh`
    and a library call compute the order for an index.

    With `stored: int8` or another form of `precisions` the index has codes or bits: old, mapped and new
    vectors are searched in that form. Codes of old vectors are decoded before they are mapped. Bits cannot
    be, so the vectors that they were made of are mapped.

    Example:
        curve:
          refresh:
            old: ./v1
            new: ./v2
            data: ./pairs.jsonl
    """

    produces: ClassVar[ArtifactKind] = "report"

    shares: tuple[Share, ...] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
    """Shares of the documents, 0 to 1."""
    stored: StoredForm | None = None
    """Form of the index, such as `int8` or `{precision: binary, rescore: 40, by: int8}`; by default
    float32."""

    @property
    def form_of_index(self) -> StoredForm:
        """Form in which the index stores vectors."""
        return self.stored or StoredForm()

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        if not self.shares or not all(0 <= share <= 1 for share in self.shares):
            yield context.problem("shares are numbers from 0 to 1", "shares")
        if self.texts != "documents":
            yield context.problem("documents are refreshed; leave texts out", "texts")
        for fault in self.form_of_index.faults():
            yield context.problem(fault, "stored")
        if self.form_of_index.size is not None:
            yield context.problem("vectors are refreshed whole; leave size out", "stored")

    def run(self, workspace: Workspace) -> Artifact:
        fit = self.fit(workspace)
        curves = _measure_curves(fit, self.shares, self.form_of_index, workspace.seed)
        (workspace.folder / "curve.json").write_text(json.dumps(curves, indent=1), "utf-8")
        (workspace.folder / "curve.md").write_text(_draw_table(curves), "utf-8")
        series = {order: curves["gain_kept"][order] for order in curves["gain_kept"]}
        figure = {
            "title": "Gain kept by the share of documents embedded anew",
            "caption": "The share of the new model's gain in nDCG@10 over the old one's.",
            "lines": {
                "x": "share embedded anew",
                "y": "gain kept",
                "labels": [f"{share:.0%}" for share in self.shares],
                "series": series,
            },
        }
        return Artifact(
            kind="report",
            parents=(fit.old.name, fit.new.name),
            details={"table": "curve.md", "curves": curves, "figures": [figure]},
        )


def _measure_curves(
    fit: Fit, shares: Sequence[float], form: StoredForm, seed: int
) -> dict[str, Any]:
    """Return nDCG@10 and kept gain by order and share, on the half of the queries not used for the order.

    Raises:
        DataError: if the data has fewer than four queries.
    """
    import numpy as np
    from emberge.numerics import ndcg

    from emberge_index.translation import NEIGHBOURS, gain_kept

    answered = np.array([row for row, hits in enumerate(fit.probes.relevant) if hits], np.int64)
    if len(answered) < 4:
        raise DataError(
            f"the data has {len(answered)} queries with their documents, too few for a curve; give pairs"
        )
    log_queries, scored_queries = answered[::2], answered[1::2]
    grades = [dict.fromkeys(fit.probes.relevant[row], 1) for row in scored_queries]

    def score(queries: Any, index: QuantisedVectors) -> float:
        return ndcg(index.search(unit_rows(queries), NEIGHBOURS), grades)

    queries = fit.new.of("queries")[scored_queries]
    old, new = (_store(form, model.documents[:]) for model in (fit.old, fit.new))
    mapped = _map_stored(fit, form)
    new_vectors, index = unit_rows(fit.new.documents[:]), _store(form, mapped)
    ends = {"old": score(fit.old.of("queries")[scored_queries], old), "new": score(queries, new)}
    curves: dict[str, Any] = {
        "shares": list(shares),
        "stored": form.label,
        **ends,
        "ndcg": {},
        "gain_kept": {},
    }
    for order, rows in _order_documents(fit, index, mapped, log_queries, seed).items():
        scores = []
        for share in shares:
            mixed_vectors = mapped.copy()
            refreshed_rows = rows[: round(share * len(rows))]
            mixed_vectors[refreshed_rows] = new_vectors[refreshed_rows]
            scores.append(score(queries, _store(form, mixed_vectors, index.ranges)))
        curves["ndcg"][order] = scores
        curves["gain_kept"][order] = [
            gain_kept({**ends, "mapped": relevant}) for relevant in scores
        ]
    return curves


def _store(form: StoredForm, vectors: Any, ranges: Int8Ranges | None = None) -> QuantisedVectors:
    """Return vectors as an index stores them, with ranges of int8 of their own if none are given."""
    from emberge.encoding import Int8Ranges, QuantisedVectors

    units = unit_rows(vectors)
    if form.needs_ranges and ranges is None:
        ranges = Int8Ranges.of(units)
    return QuantisedVectors.store(form, units, ranges)


def _map_stored(fit: Fit, form: StoredForm) -> NDArray[np.float32]:
    """Return the mapped documents, each by a map that was not fitted on it, scaled to length one.

    Codes are mapped in place of the vectors: what a code has lost is added as the whole map translates it.
    """
    from emberge.encoding import Int8Ranges

    from emberge_index.vectors import Codec

    mapped: NDArray[Any] = fit.folds.out_of_fold
    if form.precision == "int8":
        vectors = fit.old.documents[:]
        lost = Codec("int8", Int8Ranges.of(vectors)).round(vectors) - vectors
        mapped = mapped + lost @ fit.folds.fitted.matrix
    units: NDArray[np.float32] = unit_rows(mapped).astype("float32")
    return units


def _order_documents(
    fit: Fit,
    index: QuantisedVectors,
    mapped: NDArray[np.float32],
    log: NDArray[np.int64],
    seed: int,
) -> Mapping[str, NDArray[np.int64]]:
    import numpy as np

    from emberge_index.refresh_verb import Hits, by_hits, strangeness_of_each
    from emberge_index.vectors import Codec

    strange = strangeness_of_each(fit.translation, [fit.old.documents[:]])
    kind = index.form.precision
    codec = Codec(kind, index.ranges) if kind in ("int8", "binary") else None
    hits = Hits(fit.new.of("queries")[log], codec)
    hits.add(mapped, 0)
    return {
        "hits": by_hits(hits.weights(len(mapped)), strange),
        "strange": np.argsort(-strange, kind="stable"),
        "random": np.random.default_rng(seed).permutation(len(mapped)),
    }


def _draw_table(curves: Mapping[str, Any]) -> str:
    head = ["gain kept, embedded anew", *(f"{share:.0%}" for share in curves["shares"])]
    rows = [
        [order, *("" if gain is None else f"{gain:.0%}" for gain in gains)]
        for order, gains in curves["gain_kept"].items()
    ]
    form = "" if curves["stored"] == "float32" else f", stored as {curves['stored']}"
    scores = f"nDCG@10: {100 * curves['old']:.2f} old, {100 * curves['new']:.2f} new{form}."
    return "\n".join([scores, "", *table_lines(head, rows)]) + "\n"
