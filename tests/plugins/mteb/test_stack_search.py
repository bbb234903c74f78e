"""A whole search of given retrievers and a given reranker: how many documents, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import ModelRef
from emberge.contracts import SearchStack, StackedModel
from emberge_encoder import Splade
from emberge_mteb.stack_search import StackSearch

from tests.support.given_scores import TASKS


class GivenSearch:
    """A retriever or reranker with given scores, which remembers what it was asked for."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self.scores = scores
        self.prepared: list[Mapping[str, str]] = []
        self.counts: list[int] = []

    def prepare(self, asked: Mapping[str, str]) -> None:
        self.prepared.append(asked)

    def index(self, corpus: Any, **_: Any) -> None:
        pass

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        self.counts.append(top_k)
        names = sorted(self.scores, key=lambda name: -self.scores[name])[:top_k]
        chosen = names if top_ranked is None else top_ranked["q"]
        return {"q": {name: self.scores[name] for name in chosen}}


def given_search(
    store: Path, stack: SearchStack, reranker: GivenSearch | None, *retrievers: GivenSearch
) -> list[str]:
    """The order of documents, of which mteb asks for two."""
    parts = [(str(number), lambda one=one: one) for number, one in enumerate(retrievers)]
    search = StackSearch(stack, parts, reranker, store=store, name="s", fingerprint="f")  # type: ignore[arg-type]
    search.prepare(TASKS[0], {"instruction": "find it"})
    search.index(None)
    hits = search.search({"id": ["q"]}, top_k=2)["q"]
    return sorted(hits, key=lambda name: -hits[name])


def stacked(*, depth: int = 4, weights: tuple[float, ...] = ()) -> SearchStack:
    retriever = StackedModel(ModelRef("./r"), Splade())
    return SearchStack((retriever,) * max(1, len(weights)), None, depth, weights, 60, 1.0)


def test_a_retriever_finds_as_many_documents_as_are_ordered_again(tmp_path: Path) -> None:
    retriever = GivenSearch({"a": 4, "b": 3, "c": 2, "d": 1})
    reranker = GivenSearch({"a": 1, "b": 2, "c": 3, "d": 4})
    assert given_search(tmp_path, stacked(), reranker, retriever) == ["d", "c", "b", "a"]
    assert retriever.counts == [4]
    assert reranker.prepared == retriever.prepared == [{"instruction": "find it"}]


def test_a_list_of_equal_scores_counts_for_what_it_found(tmp_path: Path) -> None:
    """It found d, which another list has last: as much as the other's first, by weight."""
    lists = GivenSearch({"a": 0.9, "b": 0.5, "d": 0.1}), GivenSearch({"d": 0.3})
    weights = (0.4, 0.6)
    assert given_search(tmp_path, stacked(weights=weights), None, *lists) == ["d", "a", "b"]
