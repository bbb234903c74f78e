"""Retrieval after a change of the model: with old, mapped or newly embedded vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emberge.numerics import ndcg, nearest_rows, overlap, row_cosines
from emberge.wording import prose, table_lines

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_index.translation.two_models import Fit


# Queries, and documents that they are compared with.
MOST_QUERIES, MOST_DOCUMENTS = 1000, 50_000
ARMS = {
    "old": "old queries, old documents",
    "untouched": "new queries, old documents",
    "mapped": "mapped",
    "new": "new queries, new documents",
}


def measures_of(fit: Fit) -> dict[str, Any]:
    """Measure a map on texts that it was not fitted on, and return the measures.

    `cosine` compares mapped vectors with the new model's vectors. `overlap` is the share of a query's first
    ten documents that the new model also has among its first ten; without queries, documents serve as
    queries. `ndcg` counts a query's positives as relevant.
    """
    import numpy as np

    header = fit.translation.header
    target = (fit.old if fit.backwards else fit.new).of(header.side)
    cosines = row_cosines(fit.folds.out_of_fold, target[:])
    measures: dict[str, Any] = {
        "texts": len(cosines),
        "cosine": {"mean": float(cosines.mean()), "p5": float(np.quantile(cosines, 0.05))},
    }
    nearest, relevant = _find_nearest(fit)
    measures["overlap"] = {
        arm: overlap(places, nearest["new"]) for arm, places in nearest.items() if arm != "new"
    }
    if relevant:
        grades = [dict.fromkeys(documents, 1) for documents in relevant]
        scores = {arm: ndcg(places, grades) for arm, places in nearest.items()}
        measures["ndcg"] = scores
        measures["gain_kept"] = {
            arm: gain_kept(scores, arm) for arm in ("untouched", "mapped") if arm in scores
        }
    return measures


def _find_nearest(fit: Fit) -> tuple[dict[str, NDArray[np.int64]], Sequence[Sequence[int]]]:
    """Return (nearest documents by arm, relevant documents of each query, if there are queries)."""
    import numpy as np

    header, mapped = fit.translation.header, fit.folds.out_of_fold
    forwards = not fit.backwards
    compared_queries, places = _choose_compared(fit.probes.relevant, len(fit.probes.documents))
    documents = {"old": fit.old.documents[places], "new": fit.new.documents[places]}
    queries_by_arm: dict[str, Any] = dict(documents)
    own_rows: NDArray[np.int64] | None = None
    relevant: list[Sequence[int]] = []
    if len(compared_queries) and fit.old.queries is not None and fit.new.queries is not None:
        relevant = [
            np.searchsorted(places, fit.probes.relevant[i]).tolist() for i in compared_queries
        ]
        queries_by_arm = {"old": fit.old.queries, "new": fit.new.queries}
    else:
        compared_queries = own_rows = np.arange(min(MOST_QUERIES, len(places)))
    queries = {arm: vectors[compared_queries] for arm, vectors in queries_by_arm.items()}
    if header.side == "documents":
        pairs = {"mapped": (queries["new" if forwards else "old"], mapped[places])}
    else:
        side = "new" if forwards else "old"
        pairs = {"mapped": (mapped[compared_queries], documents[side])}
    pairs |= {arm: (queries[arm], documents[arm]) for arm in ("old", "new")}
    if fit.old.documents.dimension == fit.new.documents.dimension:
        pairs["untouched"] = (queries["new"], documents["old"])
    nearest_by_arm = {
        arm: nearest_rows(*pairs[arm], NEIGHBOURS, skipped=own_rows) for arm in ARMS if arm in pairs
    }
    return nearest_by_arm, relevant


def _choose_compared(
    relevant: Sequence[Sequence[int]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (indices of the queries to use, indices of the documents to search), both ascending.

    The documents are all documents relevant to these queries, and the first of the other documents.
    """
    import numpy as np

    queries = [number for number, documents in enumerate(relevant) if documents][:MOST_QUERIES]
    while sum(len(relevant[number]) for number in queries[1:]) > MOST_DOCUMENTS:
        queries.pop()
    relevant_documents = {document for query in queries for document in relevant[query]}
    other_documents = [
        number for number in range(min(count, MOST_DOCUMENTS)) if number not in relevant_documents
    ]
    places = (
        sorted(relevant_documents)
        + other_documents[: max(0, MOST_DOCUMENTS - len(relevant_documents))]
    )
    return np.array(queries, np.int64), np.array(sorted(places), np.int64)


def table_of(measures: Mapping[str, Any], title: str) -> list[str]:
    """Return the measures as lines of a Markdown table."""
    cosine = measures["cosine"]
    scores, gains = measures.get("ndcg", {}), measures.get("gain_kept", {})
    rows = []
    for arm, label in ARMS.items():
        if arm not in measures["overlap"] and arm != "new":
            continue
        overlap_text = f"{measures['overlap'].get(arm, 1.0):.1%}"
        score = f"{100 * scores[arm]:.2f}" if arm in scores else ""
        gain = gains.get(arm)
        rows.append([label, overlap_text, score, "" if gain is None else f"{gain:.0%}"])
    return [
        f"# {prose(title)}",
        "",
        f"Out of fold, {measures['texts']:,} texts: cosine {cosine['mean']:.4f} in the mean, "
        f"{cosine['p5']:.4f} at the lowest 5 %.",
        "",
        *table_lines(["", "shared with the new model's first ten", "nDCG@10", "gain kept"], rows),
    ]


# Documents of a query that are looked at.
NEIGHBOURS = 10


def gain_kept(scores: Mapping[str, float], mapped: str = "mapped") -> float | None:
    """Return (mapped - old) / (new - old), the kept share of the new model's gain; None without a gain."""
    gain = scores["new"] - scores["old"]
    return (scores[mapped] - scores["old"]) / gain if gain > 0 else None
