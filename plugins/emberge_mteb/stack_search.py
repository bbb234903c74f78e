"""A whole search behind mteb's interfaces: retrievers, their fusion, and a reranker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from emberge import TaskInfo
from emberge.contracts import SearchStack
from emberge.wording import join_some

from emberge_mteb.kept_index import find_tasks_without_sides
from emberge_mteb.kind_search import Hits, PairSearch
from emberge_mteb.model import build_model_meta


def stack_faults(tasks: Sequence[TaskInfo], options: Mapping[str, object]) -> Iterator[str]:
    """Yield a problem for tasks or options that a whole search cannot be scored with."""
    others = find_tasks_without_sides(tasks)
    if others:
        yield (
            f"is a whole search, and {join_some(others)} has no documents to find; take retrieval and "
            "reranking tasks"
        )
    for option, value in options.items():
        if value:
            yield (
                f"is a whole search, and {option} is about the vectors of one model; score it in an "
                "evaluation of its own"
            )


class StackSearch:
    """Implementation of mteb's `SearchProtocol` by a `SearchStack`.

    The scores are those of ranks: mteb needs no more, and an order is exact in any precision.
    """

    def __init__(
        self,
        stack: SearchStack,
        retrievers: Sequence[Any],
        reranker: PairSearch | None,
        *,
        name: str,
        fingerprint: str,
    ) -> None:
        self._stack = stack
        self._retrievers = retrievers
        self._reranker = reranker
        self._corpus: Any = None
        self._given: dict[str, Any] = {}
        self.mteb_model_meta = build_model_meta(name, fingerprint)

    def prepare(self, asked: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's `instruction` and `prompt`."""
        for part in (*self._retrievers, self._reranker):
            if part is not None:
                part.prepare(asked, size)

    def index(self, corpus: Any, **given: Any) -> None:
        """Set the corpus of the next search."""
        self._corpus, self._given = corpus, given

    def search(self, queries: Any, *, top_k: int, **given: Any) -> Hits:
        """Return the documents of each query, which retrievers find and the reranker orders."""
        count = max(top_k, self._stack.depth)
        lists = [
            self._find(retriever, queries, top_k=count, **given) for retriever in self._retrievers
        ]
        orders = {query: self._fuse([hits[query] for hits in lists]) for query in queries["id"]}
        if self._reranker is not None:
            depth = self._stack.depth
            first = {query: order[:depth] for query, order in orders.items()}
            self._reranker.index(self._corpus, **self._given)
            scores = self._reranker.search(queries, **{**given, "top_ranked": first})
            orders = {
                query: [*sorted(first[query], key=_falling(scores[query])), *order[depth:]]
                for query, order in orders.items()
            }
        return {
            query: {name: float(len(order) - place) for place, name in enumerate(order)}
            for query, order in orders.items()
        }

    def _find(self, retriever: Any, queries: Any, **given: Any) -> Hits:
        """Return the documents that one retriever finds."""
        from mteb.models.search_wrappers import SearchEncoderWrapper

        search = retriever if hasattr(retriever, "search") else SearchEncoderWrapper(retriever)
        search.index(self._corpus, **self._given)
        hits: Hits = search.search(queries, **given)
        return hits

    def _fuse(self, lists: Sequence[Mapping[str, float]]) -> list[str]:
        """Return the order of all documents that the retrievers found for one query."""
        if len(lists) == 1:
            return _order(lists[0])
        if self._stack.weights:
            return _order(_add(map(_scale, lists), self._stack.weights))
        constant = self._stack.rank_constant
        ranks = ({n: 1 / (constant + i) for i, n in enumerate(_order(one), 1)} for one in lists)
        return _order(_add(ranks, [1.0] * len(lists)))


def _falling(scores: Mapping[str, float]) -> Any:
    """Return the key that sorts names by falling scores, and keeps the order of equal ones."""
    return lambda name: -scores[name]


def _order(scores: Mapping[str, float]) -> list[str]:
    """Return the names by falling scores; names with equal scores are sorted."""
    return sorted(scores, key=lambda name: (-scores[name], name))


def _add(lists: Iterable[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Return the weighted sum of scores by name; a name that a list lacks has 0 there."""
    total: dict[str, float] = {}
    for weight, scores in zip(weights, lists, strict=True):
        for name, score in scores.items():
            total[name] = total.get(name, 0.0) + weight * score
    return total


def _scale(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of a list, scaled to 0 to 1; equal scores are all 1."""
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    return {
        name: (score - low) / (high - low) if high > low else 1.0 for name, score in scores.items()
    }
