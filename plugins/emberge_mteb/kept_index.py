"""Indexes of another model's documents, behind mteb's interfaces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, DataError, Model, TaskInfo, Workspace
from emberge.contracts import KeptIndex
from emberge.encoding import read_space_map
from emberge.wording import join_some

from emberge_mteb.index_options import wrong_width
from emberge_mteb.model import cut_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_mteb.model import MtebModel

    Matrix = NDArray[np.float32]
    Hits = dict[str, dict[str, float]]


class Indexes:
    """Indexes that a model is scored on, its own among them; other models are loaded when first needed.

    `load` gives the model of an index; its text is a name of its own for a folder of media.
    """

    def __init__(
        self,
        model: Model,
        own: MtebModel,
        indexes: Sequence[KeptIndex],
        workspace: Workspace,
        load: Callable[[Model, str], MtebModel],
    ) -> None:
        self._model = model
        self._own = own
        self._indexes = {index.label: index for index in indexes}
        self._workspace = workspace
        self._load = load
        self._loaded: dict[str, MtebModel] = {}

    def searched(self, task: TaskInfo, asked: Mapping[str, str]) -> Any:
        """Return what mteb scores on a task; `asked` are texts for a template of prompts.

        On an index of the model itself it is the model alone.

        Raises:
            CheckpointError: for an index of an adapter.
            DataError: where no translation leads from the index to the model.
        """
        self._own.prepare(asked, task.size)
        index = self._indexes[task.index] if task.index is not None else None
        old = self._workspace.model(index.model) if index is not None else self._model
        if index is None or old.fingerprint == self._model.fingerprint:
            return self._own
        translate = self._translation(index, old)
        if old.fingerprint not in self._loaded:
            if old.adapter is not None:
                raise CheckpointError(
                    f"{old.name}: an index is of a whole model, not of an adapter; merge it first"
                )
            self._loaded[old.fingerprint] = self._load(old, f"index-{len(self._loaded)}")
        documents = self._loaded[old.fingerprint]
        documents.prepare(asked, task.size)
        on_index = OnIndex(self._own, documents, translate, index.label, task.size)
        if not index.anew:
            return on_index
        return with_first_hits_anew(on_index, self._own, index.anew)

    def _translation(self, index: KeptIndex, old: Model) -> Callable[[Matrix], Matrix] | None:
        """Return the function of the translations that lead from the index to the model, None without any."""
        if not index.translations:
            return None
        found = [read_space_map(self._workspace.data(one)) for one in index.translations]
        way = _way(found, old.fingerprint, self._model.fingerprint)
        if way is not None:
            return lambda rows: functools.reduce(lambda moved, one: one.apply(moved), way, rows)
        raise DataError(
            f"documents_of: none of {join_some([str(one) for one in index.translations])} leads from "
            f"{old.name} to {self._model.name}, as their fingerprints are those of other models; fit a "
            "translation between these two"
        )


def _way(found: Sequence[Any], source: str, target: str) -> list[Any] | None:
    """Return the fewest translations that lead from one model to another, in order; None without a way."""
    ways: dict[str, list[Any]] = {source: []}
    for _ in found:
        for place, way in list(ways.items()):
            for one in found:
                if one.source == place:
                    ways.setdefault(one.target, [*way, one])
    return ways.get(target)


class OnIndex:
    """Implementation of mteb's `EncoderProtocol` by two models, one a side; of retrieval and reranking only.

    `translate` turns the documents' vectors [n, d] into the space of the queries.
    """

    def __init__(
        self,
        queries: MtebModel,
        documents: MtebModel,
        translate: Callable[[Matrix], Matrix] | None,
        label: str,
        size: int | None,
    ) -> None:
        self._queries = queries
        self._documents = documents
        self._translate = translate
        self._label = label
        self._size = size
        self.mteb_model_meta = queries.mteb_model_meta
        self.similarity = queries.similarity
        self.similarity_pairwise = queries.similarity_pairwise

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Matrix:
        """Return embeddings [inputs, dimension]: of documents by the index's model, translated, then cut.

        Raises:
            DataError: for vectors of another size than those of queries.
        """
        side = str(getattr(prompt_type, "value", prompt_type))
        given = {"task_metadata": task_metadata, "prompt_type": prompt_type}
        if side != "document":
            return self._queries.encode(inputs, **given)
        rows = self._documents.whole(inputs, **given)
        if self._translate is not None:
            rows = self._translate(rows)
        if rows.shape[1] != self._queries.dimension:
            raise DataError(wrong_width(self._label, rows.shape[1], self._queries.dimension))
        return cut_rows(rows, self._size)


def with_first_hits_anew(on_index: Any, own: Any, count: int) -> Any:
    """Return mteb's `SearchProtocol`: the index's first `count` hits, ordered by vectors that `own` makes.

    They stay before all others, whose order is the index's.
    """
    from mteb.models.search_wrappers import SearchEncoderWrapper

    class _Refreshed:
        mteb_model_meta = own.mteb_model_meta

        def __init__(self) -> None:
            self._search = SearchEncoderWrapper(on_index)
            self._corpus: Any = None
            self._given: dict[str, Any] = {}

        def index(self, corpus: Any, **given: Any) -> None:
            self._corpus, self._given = corpus, given
            self._search.index(corpus, **given)

        def search(self, queries: Any, **given: Any) -> Hits:
            found: Hits = self._search.search(queries, **given)
            first = {query: _first(hits, count) for query, hits in found.items()}
            anew = {document for some in first.values() for document in some}
            rows = [row for row, name in enumerate(self._corpus["id"]) if name in anew]
            embedded = SearchEncoderWrapper(own)
            embedded.index(self._corpus.select(rows), **self._given)
            ranked = embedded.search(queries, **{**given, "top_ranked": first})
            return {query: _joined(found[query], ranked[query]) for query in found}

    return _Refreshed()


def _first(hits: Mapping[str, float], count: int) -> list[str]:
    """Return the names of the first hits; of equal ones those that come first by name."""
    return sorted(hits, key=lambda name: (-hits[name], name))[:count]


def _joined(found: Mapping[str, float], anew: Mapping[str, float]) -> dict[str, float]:
    """Return scores that put hits with vectors of their own first, and the others behind as they were."""
    others = {name: score for name, score in found.items() if name not in anew}
    above = max(others.values(), default=0.0) - min(anew.values(), default=0.0) + 1.0
    return others | {name: score + above for name, score in anew.items()}
