"""Search by models of other kinds of embedding than one vector a text, behind mteb's interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from emberge import Backbone, EmbeddingKind, TaskInfo
from emberge.contracts import describe_kinds
from emberge.wording import join_some

from emberge_mteb.model import TaskTexts, build_model_meta
from emberge_mteb.task_media import load_batches

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import TextSearch
    from numpy.typing import NDArray

    Scores = NDArray[np.float32]

Hits: TypeAlias = dict[str, dict[str, float]]
"""Scores of documents by query."""
ScorePairs: TypeAlias = "Callable[[Sequence[str], Sequence[str], str], Scores]"
"""Function that returns the scores [n] of queries and documents, each query with a prompt before it."""


def find_tasks_without_sides(tasks: Sequence[TaskInfo]) -> list[str]:
    """Return the names of the distinct tasks whose texts are neither queries nor documents."""
    kind_by_name = {task.plain_name: task.kind for task in tasks}
    return [
        name for name, kind in kind_by_name.items() if not kind.endswith(("retrieval", "reranking"))
    ]


def kind_faults(kind: EmbeddingKind, tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if models of a kind cannot be scored on some of the tasks."""
    others = join_some(find_tasks_without_sides(tasks))
    searched = [task.plain_name for task in tasks if task.kind.endswith("retrieval")]
    if kind == "pair_score" and searched:
        yield (
            f"is a reranker, which scores pairs of texts and cannot search (in {join_some(searched)}); score "
            "it on reranking tasks"
        )
    if kind == "pair_score" and others:
        yield f"is a reranker, and no query comes with candidates in {others}; take reranking tasks"
    if kind in ("sparse", "token_vectors") and others:
        yield (
            f"gives {describe_kinds({kind})}, and one vector a text is needed for {others}; take retrieval "
            "and reranking tasks"
        )


def find_untrained(backbone: Backbone, checkpoint: Path) -> Iterator[str]:
    """Yield a problem if a checkpoint is not of its backbone's kind, so that scores would be by chance."""
    facts = backbone.describe(checkpoint)
    yield from facts.problems
    if facts.untrained:
        yield (
            f"has no {join_some(facts.untrained)}, so {type(backbone).__name__} would score it with random "
            "weights; train it with this backbone first, or take the backbone of its own kind"
        )


class KindSearch:
    """Implementation of mteb's `SearchProtocol` by an encoder's own similarity.

    Documents are embedded in blocks while queries are scored, and no index is kept.
    """

    def __init__(
        self, search: TextSearch, texts: TaskTexts, *, name: str, fingerprint: str
    ) -> None:
        self._search = search
        self._texts = texts
        self._corpus: Any = None
        self.mteb_model_meta = build_model_meta(name, fingerprint)

    def prepare(self, asked: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's `instruction` and `prompt`."""
        self._texts.prepare(asked)

    def index(self, corpus: Any, **_: Any) -> None:
        """Set the corpus of the next search."""
        self._corpus = corpus

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Hits:
        """Return the scores of the best `top_k` documents of each query, or of its `top_ranked` ones."""
        asked = self._search.embed_queries(
            self._texts.read(load_batches(queries, "query", task_metadata)),
            prompt=self._texts.prompt("query", task_metadata),
        )
        names = list(queries["id"])
        best = _Candidates(names, top_ranked) if top_ranked is not None else _Best(names, top_k)
        document_prompt = self._texts.prompt("document", task_metadata)
        size = asked.documents_at_once
        for start in range(0, len(self._corpus), size):
            block = self._corpus.select(range(start, min(start + size, len(self._corpus))))
            texts = self._texts.read(load_batches(block, "document", task_metadata))
            scores = self._search.score(asked, texts, prompt=document_prompt)
            best.add(list(block["id"]), scores)
        self._corpus = None
        return best.hits()


class _Best:
    """The best documents of each query in the blocks that were added; ties keep the corpus's order."""

    def __init__(self, queries: Sequence[str], count: int) -> None:
        import numpy as np

        self._queries, self._count = queries, count
        self._names: list[str] = []
        self._places = np.empty((len(queries), 0), np.int64)
        self._scores = np.empty((len(queries), 0), np.float32)

    def add(self, documents: Sequence[str], scores: Scores) -> None:
        """Add the scores [queries, documents] of a block."""
        import numpy as np

        places = np.arange(len(self._names), len(self._names) + len(documents))
        self._names += documents
        joined = np.concatenate([self._scores, scores], axis=1)
        joined_places = np.concatenate(
            [self._places, np.broadcast_to(places, scores.shape)], axis=1
        )
        best = np.argsort(-joined, axis=1, kind="stable")[:, : self._count]
        self._scores = np.take_along_axis(joined, best, 1)
        self._places = np.take_along_axis(joined_places, best, 1)

    def hits(self) -> Hits:
        """Return the scores of the best documents by query."""
        best = zip(self._queries, self._places, self._scores, strict=True)
        return {
            query: {self._names[row]: float(score) for row, score in zip(rows, scores, strict=True)}
            for query, rows, scores in best
        }


class _Candidates:
    """The scores of each query's own candidates in the blocks that were added."""

    def __init__(self, queries: Sequence[str], candidates: Mapping[str, Sequence[str]]) -> None:
        self._hits: Hits = {query: {} for query in queries}
        self._askers: dict[str, list[int]] = {}
        self._queries = queries
        for row, query in enumerate(queries):
            for document in candidates.get(query, ()):
                self._askers.setdefault(document, []).append(row)

    def add(self, documents: Sequence[str], scores: Scores) -> None:
        """Add the scores [queries, documents] of a block."""
        for column, document in enumerate(documents):
            for row in self._askers.get(document, ()):
                self._hits[self._queries[row]][document] = float(scores[row, column])

    def hits(self) -> Hits:
        """Return the scores of each query's candidates."""
        return self._hits


class Reranker:
    """Implementation of mteb's `CrossEncoderProtocol`; mteb pairs each query with its candidates."""

    def __init__(
        self, score_pairs: ScorePairs, texts: TaskTexts, *, name: str, fingerprint: str
    ) -> None:
        self._score_pairs = score_pairs
        self._texts = texts
        self.mteb_model_meta = build_model_meta(name, fingerprint)

    def prepare(self, asked: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's `instruction` and `prompt`."""
        self._texts.prepare(asked)

    def predict(self, inputs1: Any, inputs2: Any, *, task_metadata: Any, **_: Any) -> Scores:
        """Return the scores [n] of queries with documents, of two loaders of equal length."""
        queries, documents = self._texts.read(inputs1), self._texts.read(inputs2)
        return self._score_pairs(queries, documents, self._texts.prompt("query", task_metadata))
