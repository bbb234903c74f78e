"""The `refresh` step: the kept gain as a function of the share of documents embedded again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import Artifact, ArtifactKind, DataError, Preflight, Problem, Share, Workspace
from emberge.wording import table_lines

from emberge_index.translation import Translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
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

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        if not self.shares or not all(0 <= share <= 1 for share in self.shares):
            yield context.problem("shares are numbers from 0 to 1", "shares")
        if self.texts != "documents":
            yield context.problem("documents are refreshed; leave texts out", "texts")

    def run(self, workspace: Workspace) -> Artifact:
        fit = self.fit(workspace)
        curves = _measure_curves(fit, self.shares, workspace.seed)
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


def _measure_curves(fit: Fit, shares: Sequence[float], seed: int) -> dict[str, Any]:
    """Return nDCG@10 and kept gain by order and share, on the half of the queries not used for the order.

    Raises:
        DataError: if the data has fewer than four queries.
    """
    import numpy as np
    from emberge.numerics import ndcg, nearest_rows

    from emberge_index.translation import NEIGHBOURS, gain_kept

    answered = np.array([row for row, hits in enumerate(fit.probes.relevant) if hits], np.int64)
    if len(answered) < 4:
        raise DataError(
            f"the data has {len(answered)} queries with their documents, too few for a curve; give pairs"
        )
    log_queries, scored_queries = answered[::2], answered[1::2]
    grades = [dict.fromkeys(fit.probes.relevant[row], 1) for row in scored_queries]

    def score(queries: Any, documents: Any) -> float:
        return ndcg(nearest_rows(queries, documents, NEIGHBOURS), grades)

    queries = fit.new.of("queries")[scored_queries]
    new, mapped = fit.new.documents[:], fit.folds.out_of_fold
    ends = {
        "old": score(fit.old.of("queries")[scored_queries], fit.old.documents[:]),
        "new": score(queries, new),
    }
    curves: dict[str, Any] = {"shares": list(shares), **ends, "ndcg": {}, "gain_kept": {}}
    for order, rows in _order_documents(fit, log_queries, seed).items():
        scores = []
        for share in shares:
            mixed_vectors = mapped.copy()
            refreshed_rows = rows[: round(share * len(rows))]
            mixed_vectors[refreshed_rows] = new[refreshed_rows]
            scores.append(score(queries, mixed_vectors))
        curves["ndcg"][order] = scores
        curves["gain_kept"][order] = [
            gain_kept({**ends, "mapped": relevant}) for relevant in scores
        ]
    return curves


def _order_documents(
    fit: Fit, log: NDArray[np.int64], seed: int
) -> Mapping[str, NDArray[np.int64]]:
    import numpy as np

    from emberge_index.refresh_verb import Hits, by_hits, strangeness_of_each

    mapped = fit.folds.out_of_fold
    strange = strangeness_of_each(fit.translation, [fit.old.documents[:]])
    hits = Hits(fit.new.of("queries")[log])
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
    scores = f"nDCG@10: {100 * curves['old']:.2f} old, {100 * curves['new']:.2f} new."
    return "\n".join([scores, "", *table_lines(head, rows)]) + "\n"
