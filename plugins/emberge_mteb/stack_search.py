"""A whole search behind mteb's interfaces: retrievers, their fusion, and a reranker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import TaskInfo
from emberge.contracts import SearchStack
from emberge.wording import join_some

from emberge_mteb.kept_hits import keep_hits
from emberge_mteb.kind_search import Hits, PairSearch
from emberge_mteb.model import build_model_meta
from emberge_mteb.sides import find_tasks_without_sides


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

    Each of `retrievers` is a text that identifies the model with its backbone, and a function that loads the
    model as mteb calls it. The documents that it finds are kept in `store`, where other stacks with the same
    retriever find them; then it is not even loaded. The scores are those of ranks: mteb needs no more, and an
    order is exact in any precision.
    """

    def __init__(
        self,
        stack: SearchStack,
        retrievers: Sequence[tuple[str, Callable[[], Any]]],
        reranker: PairSearch | None,
        *,
        store: Path,
        name: str,
        fingerprint: str,
    ) -> None:
        self._stack = stack
        self._store = store
        self._task = ""
        self._asked: Mapping[str, str] = {}
        self._contents = [content for content, _ in retrievers]
        self._load = [functools.cache(load) for _, load in retrievers]
        self._reranker = reranker
        self._corpus: Any = None
        self._given: dict[str, Any] = {}
        self.mteb_model_meta = build_model_meta(name, fingerprint)

    def prepare(self, task: TaskInfo, asked: Mapping[str, str]) -> None:
        """Set the next task, and its `instruction` and `prompt`."""
        self._task, self._asked = task.fingerprint, asked
        if self._reranker is not None:
            self._reranker.prepare(asked)

    def index(self, corpus: Any, **given: Any) -> None:
        """Set the corpus of the next search."""
        self._corpus, self._given = corpus, given

    def search(self, queries: Any, *, top_k: int, **given: Any) -> Hits:
        """Return the documents of each query, which retrievers find and the reranker orders."""
        depth = self._stack.depth
        given["top_k"] = max(top_k, depth)
        lists = [self._find(number, queries, given) for number in range(len(self._contents))]
        fused = {query: self._fuse([hits[query] for hits in lists]) for query in queries["id"]}
        orders = {query: _order(scores) for query, scores in fused.items()}
        if self._reranker is not None:
            first = {query: order[:depth] for query, order in orders.items()}
            self._reranker.index(self._corpus, **self._given)
            scores = self._reranker.search(queries, **{**given, "top_ranked": first})
            for query, order in orders.items():
                mixed = self._mix(scores[query], fused[query], first[query])
                orders[query] = [*sorted(first[query], key=_falling(mixed)), *order[depth:]]
        return {
            query: {name: float(len(order) - place) for place, name in enumerate(order)}
            for query, order in orders.items()
        }

    def _find(self, number: int, queries: Any, given: Mapping[str, Any]) -> Hits:
        """Return the documents that one retriever finds, or found earlier for this task."""

        def find() -> Hits:
            from mteb.models.search_wrappers import SearchEncoderWrapper

            retriever = self._load[number]()
            retriever.prepare(self._asked)
            search = retriever if hasattr(retriever, "search") else SearchEncoderWrapper(retriever)
            search.index(self._corpus, **self._given)
            hits: Hits = search.search(queries, **given)
            return hits

        part = [given.get("hf_subset"), given.get("hf_split"), given["top_k"]]
        content = repr((self._task, *part, self._contents[number]))
        return keep_hits(self._store, content, find)

    def _fuse(self, lists: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Return the scores of all documents that the retrievers found for one query."""
        if len(lists) == 1:
            return lists[0]
        if self._stack.weights:
            return _add(map(_scale, lists), self._stack.weights)
        constant = self._stack.rank_constant
        ranks = ({n: 1 / (constant + i) for i, n in enumerate(_order(one), 1)} for one in lists)
        return _add(ranks, [1.0] * len(lists))

    def _mix(
        self, reranked: Mapping[str, float], found: Mapping[str, float], names: Sequence[str]
    ) -> Mapping[str, float]:
        """Return the reranker's scores of a query's documents, mixed with those of the retrievers."""
        share = self._stack.reranker_share
        if share == 1:
            return reranked
        sides = ({name: scores[name] for name in names} for scores in (reranked, found))
        return _add(map(_scale, sides), (share, 1 - share))


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
