"""Figure of how many relevant documents the queries of retrieval tasks have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emberge import TaskScore

_MOST = 10  # relevant documents that have a place of their own


def relevance_figures(scores: Mapping[str, Mapping[str, TaskScore]]) -> list[dict[str, Any]]:
    """Return the histogram of relevant documents per query (figure 2 of CoDiEmb, arXiv:2508.11442).

    A series is the share of a retrieval task's queries that have a number of relevant documents. Tasks are
    the same for all models. There is no figure if no query has two of them.
    """
    counts_by_task: dict[str, dict[int, int]] = {}
    for task_scores in scores.values():
        for score in task_scores.values():
            counts = score.result.get("relevant_documents")
            if score.task.kind == "retrieval" and counts:
                queries_by_documents = {
                    int(documents): int(queries) for documents, queries in counts.items()
                }
                counts_by_task.setdefault(score.task.plain_name, queries_by_documents)
    most = max((max(counts) for counts in counts_by_task.values()), default=0)
    if most < 2:
        return []
    places = [str(documents) for documents in range(1, min(most, _MOST - 1) + 1)]
    if most >= _MOST:
        places.append(f"{_MOST} or more")
    rows = [
        [name, f"{sum(counts.values()):,}", f"{_average(counts):.2f}", f"{max(counts):,}"]
        for name, counts in counts_by_task.items()
    ]
    return [
        {
            "title": "Relevant documents per query",
            "caption": "Share of each retrieval task's queries by the number of documents relevant to them.",
            "bars": {
                "x": "relevant documents",
                "y": "share of queries",
                "labels": places,
                "series": {
                    name: _share_queries(counts, len(places))
                    for name, counts in counts_by_task.items()
                },
            },
            "table": {
                "title": "Queries and their relevant documents",
                "head": ["Task", "Queries", "Mean", "Most"],
                "rows": rows,
            },
        }
    ]


def _average(counts: Mapping[int, int]) -> float:
    return sum(documents * queries for documents, queries in counts.items()) / sum(counts.values())


def _share_queries(counts: Mapping[int, int], places: int) -> list[float]:
    """Return the share of queries at each document count; larger counts are included in the last."""
    total, shares = sum(counts.values()), [0.0] * places
    for documents, queries in counts.items():
        if documents > 0:
            shares[min(documents, places) - 1] += queries / total
    return shares
