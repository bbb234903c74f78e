"""Indexes whose documents another model has embedded, behind mteb's interfaces."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Backbone, CheckpointError, DataError, Model, Preflight, TaskInfo, Workspace
from emberge.contracts import KeptIndex
from emberge.wording import join_some

from emberge_mteb.model import cut_rows
from emberge_mteb.sides import describe_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_mteb.model import MtebModel

    Matrix = NDArray[np.float32]
    Hits = dict[str, dict[str, float]]


# Ends of the kinds of task that have documents, which an index is of.
SEARCHED = ("retrieval", "reranking")


def index_faults(
    indexes: Sequence[KeptIndex], backbone: Backbone | None, context: Preflight
) -> Iterator[str]:
    """Yield problems of indexes before a run: names, numbers, models that cannot embed documents."""
    for label, count in Counter(index.label for index in indexes).items():
        if count > 1:
            yield f"{count} indexes are called '{label}'; give each a `name`"
    for index in indexes:
        if index.anew < 0:
            yield f"anew: {index.anew} documents cannot be embedded anew; give a number from 0 on"
        if context.adapter(index.model) is not None:
            yield f"{index.model}: an index is of a whole model, not of an adapter; merge it first"
        folder = context.model(index.model)
        for problem in (
            describe_model(backbone, folder).problems if backbone and folder is not None else ()
        ):
            yield f"{index.model}: {problem}"


def find_tasks_without_sides(tasks: Sequence[TaskInfo]) -> list[str]:
    """Return the names of the distinct tasks whose texts are neither queries nor documents."""
    kind_by_name = {task.plain_name: task.kind for task in tasks}
    return [name for name, kind in kind_by_name.items() if not kind.endswith(SEARCHED)]


def find_unsearched_tasks(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem for each distinct task that has no documents."""
    kind_by_name = {task.plain_name: task.kind for task in tasks}
    for name in find_tasks_without_sides(tasks):
        yield (
            f"'{name}' is {kind_by_name[name]}, which has no documents that an index could be of; score it "
            "by an evaluation of its own"
        )


def index_widths(
    indexes: Sequence[KeptIndex], backbone: Backbone, checkpoint: Path, context: Preflight
) -> Iterator[str]:
    """Yield the indexes that a model cannot search, because their vectors have another size than its own."""
    dimension = describe_model(backbone, checkpoint).dimension
    for index in indexes:
        folder = None if index.translations else context.model(index.model)
        width = None if folder is None else describe_model(backbone, folder).dimension
        if None not in (width, dimension) and width != dimension:
            yield describe_width_problem(index.label, width, dimension)


def describe_width_problem(label: str, width: int | None, wanted: int | None) -> str:
    """Return the problem with an index whose vectors have another size than a model's queries."""
    return (
        f"the index '{label}' has vectors of {width} numbers and the queries have {wanted}; give "
        "documents_of `translations` that lead from the one space to the other"
    )


def index_contents(indexes: Sequence[KeptIndex], workspace: Workspace) -> list[str]:
    """Return the fingerprints of each index's model and translations, which decide its vectors."""
    from emberge.encoding import read_space_map

    return [
        " ".join(
            [
                workspace.model(index.model).fingerprint,
                *(read_space_map(workspace.data(one)).fingerprint for one in index.translations),
            ]
        )
        for index in indexes
    ]


class Indexes:
    """Indexes that a model is scored on, including its own index; other models are loaded when first needed.

    `load` returns the model of an index; the text that it takes is a unique name for a folder of media.
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
        """Return the model that mteb scores on a task; `asked` has the texts for a prompt template.

        On the model's own index, the model itself is returned.

        Raises:
            CheckpointError: if the index was built with an adapter.
            DataError: if no translation leads from the index to the model.
        """
        self._own.prepare(asked, task.form)
        index = self._indexes[task.index] if task.index is not None else None
        index_model = self._workspace.model(index.model) if index is not None else self._model
        if index is None or index_model.fingerprint == self._model.fingerprint:
            return self._own
        translate = self._find_translation(index, index_model)
        if index_model.fingerprint not in self._loaded:
            if index_model.adapter is not None:
                raise CheckpointError(
                    f"{index_model.name}: an index is of a whole model, not of an adapter; merge it first"
                )
            self._loaded[index_model.fingerprint] = self._load(
                index_model, f"index-{len(self._loaded)}"
            )
        documents = self._loaded[index_model.fingerprint]
        documents.prepare(asked, task.form)
        size = None if task.form is None else task.form.size
        on_index = OnIndex(self._own, documents, translate, index.label, size)
        if not index.anew:
            return on_index
        return embed_first_hits(on_index, self._own, index.anew)

    def _find_translation(
        self, index: KeptIndex, index_model: Model
    ) -> Callable[[Matrix], Matrix] | None:
        """Return the function that translates the index's vectors for the model; None without any."""
        from emberge.encoding import read_space_map

        if not index.translations:
            return None
        translations = [read_space_map(self._workspace.data(one)) for one in index.translations]
        translation_chain = _find_way(
            translations, index_model.fingerprint, self._model.fingerprint
        )
        if translation_chain is not None:
            return lambda rows: functools.reduce(
                lambda moved, one: one.apply(moved), translation_chain, rows
            )
        raise DataError(
            f"documents_of: none of {join_some([str(one) for one in index.translations])} leads from "
            f"{index_model.name} to {self._model.name}, as their fingerprints are those of other models; "
            "fit a "
            "translation between these two"
        )


def _find_way(translations: Sequence[Any], source: str, target: str) -> list[Any] | None:
    """Return the shortest chain of translations from one model to another; None if there is none."""
    chain_by_space: dict[str, list[Any]] = {source: []}
    for _ in translations:
        for space, chain in list(chain_by_space.items()):
            for translation in translations:
                if translation.source == space:
                    chain_by_space.setdefault(translation.target, [*chain, translation])
    return chain_by_space.get(target)


class OnIndex:
    """Implementation of mteb's `EncoderProtocol` with one model per side, for retrieval and reranking only.

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
        """Return embeddings [inputs, dimension]; those of documents are the index's, translated, then cut.

        Raises:
            DataError: if the vectors of documents and of queries differ in size.
        """
        side = str(getattr(prompt_type, "value", prompt_type))
        details = {"task_metadata": task_metadata, "prompt_type": prompt_type}
        if side != "document":
            return self._queries.encode(inputs, **details)
        rows = self._documents.whole(inputs, **details)
        if self._translate is not None:
            rows = self._translate(rows)
        if rows.shape[1] != self._queries.dimension:
            raise DataError(
                describe_width_problem(self._label, rows.shape[1], self._queries.dimension)
            )
        return cut_rows(rows, self._size)


def embed_first_hits(on_index: Any, own: Any, count: int) -> Any:
    """Return a search (mteb's `SearchProtocol`) that reorders the first `count` hits by `own`'s vectors.

    These hits stay before all other hits, which keep the index's order.
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
            all_hits: Hits = self._search.search(queries, **given)
            first = {query: _list_first_names(hits, count) for query, hits in all_hits.items()}
            anew = {document for documents in first.values() for document in documents}
            rows = [row for row, name in enumerate(self._corpus["id"]) if name in anew]
            embedded = SearchEncoderWrapper(own)
            embedded.index(self._corpus.select(rows), **self._given)
            ranked = embedded.search(queries, **{**given, "top_ranked": first})
            return {query: _join_scores(all_hits[query], ranked[query]) for query in all_hits}

    return _Refreshed()


def _list_first_names(hits: Mapping[str, float], count: int) -> list[str]:
    """Return the names of the first hits; hits with equal scores are ordered by name."""
    return sorted(hits, key=lambda name: (-hits[name], name))[:count]


def _join_scores(hits: Mapping[str, float], reordered: Mapping[str, float]) -> dict[str, float]:
    """Return scores that rank the reordered hits first, then the others in their old order."""
    other_scores = {name: score for name, score in hits.items() if name not in reordered}
    offset = max(other_scores.values(), default=0.0) - min(reordered.values(), default=0.0) + 1.0
    return other_scores | {name: score + offset for name, score in reordered.items()}
