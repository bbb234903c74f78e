"""Search among vectors as they are stored, in another size or precision, behind mteb's interface."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emberge import DataError, TaskInfo
from emberge.contracts import Side, StoredForm
from emberge.numerics import unit_rows

from emberge_mteb.kept_index import SEARCHED
from emberge_mteb.kind_search import Hits
from emberge_mteb.model import MtebModel, cut_rows, sample_ranges
from emberge_mteb.task_media import load_batches

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import Int8Ranges
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Places = NDArray[np.int64]

_FIRST = 10  # documents of recall


class StoredSearch:
    """Implementation of mteb's `SearchProtocol` by a model's vectors in a form.

    Documents with equal scores, of which Hamming distance has many, are in the order of a hash of their
    names, so that no collection gains by its own order. The scores are those of ranks.
    """

    def __init__(self, model: MtebModel) -> None:
        if model.compared_by == "euclidean":
            raise DataError(
                f"{model.mteb_model_meta.name}: compares by euclidean distance, and precisions are for "
                "cosine and dot product; leave them out"
            )
        self._model = model
        self._form = StoredForm()
        self._corpus: Any = None
        self._asked: Mapping[str, str] | None = None
        self._own_first: dict[tuple[object, object], Places] = {}
        self._recalls: list[float] = []
        self._calibration: dict[str, Any] = {}
        self.mteb_model_meta = model.mteb_model_meta

    def choose(self, task: TaskInfo, asked: Mapping[str, str]) -> Any:
        """Return the model that mteb scores on the next task: this search, or the vectors of other tasks."""
        assert task.form is not None
        self._model.prepare(asked, task.form)
        if not task.kind.endswith(SEARCHED):
            return self._model
        if asked is not self._asked:
            self._own_first.clear()
        self._asked, self._form, self._recalls, self._calibration = asked, task.form, [], {}
        return self

    @property
    def stored(self) -> dict[str, Any]:
        """The bytes of a vector, recall beside the model's own float32 vectors, and ranges of int8."""
        facts: dict[str, Any] = {"bytes": self._form.count_bytes(self._model.dimension)}
        if self._recalls:
            facts["recall"] = sum(self._recalls) / len(self._recalls)
        return facts | self._calibration

    def index(self, corpus: Any, **_: Any) -> None:
        """Set the corpus of the next search."""
        self._corpus = corpus

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        hf_split: Any = None,
        hf_subset: Any = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Hits:
        """Return the ranks of the best `top_k` documents of each query, or of its `top_ranked` ones."""
        from emberge.encoding import QuantisedVectors

        corpus = self._corpus
        names = sorted(corpus["id"], key=_hash_name)
        place = {name: row for row, name in enumerate(corpus["id"])}
        rows = self._embed(corpus, "document", task_metadata)[[place[name] for name in names]]
        asked = self._embed(queries, "query", task_metadata)
        cut_documents, cut_queries = (cut_rows(one, self._form.size) for one in (rows, asked))
        ranges = self._find_ranges(cut_documents) if self._form.needs_ranges else None
        stored = QuantisedVectors.store(self._form, cut_documents, ranges)
        query_names = list(queries["id"])
        if top_ranked is not None:
            return _rank_candidates(stored, names, query_names, cut_queries, top_ranked)
        found = stored.search(cut_queries, top_k)
        key = (hf_split, hf_subset)
        if key not in self._own_first:
            own = QuantisedVectors.store(StoredForm(), rows)
            self._own_first[key] = own.search(asked, _FIRST)
        self._recalls.append(_recall(found, self._own_first[key]))
        self._corpus = None
        return {
            query: _by_rank([names[row] for row in places])
            for query, places in zip(query_names, found, strict=True)
        }

    def _embed(self, texts: Any, side: Side, task_metadata: Any) -> Matrix:
        batches = load_batches(texts, side, task_metadata)
        rows = self._model.whole(batches, task_metadata=task_metadata, prompt_type=side)
        return unit_rows(rows) if self._model.compared_by == "cosine" else rows

    def _find_ranges(self, rows: Matrix) -> Int8Ranges:
        ranges, self._calibration = sample_ranges(rows, self.mteb_model_meta.name)
        return ranges


def _rank_candidates(
    stored: Any,
    names: Sequence[str],
    queries: Sequence[str],
    rows: Matrix,
    candidates: Mapping[str, Sequence[str]],
) -> Hits:
    """Return the ranks of each query's own candidates."""
    import numpy as np

    place = {name: row for row, name in enumerate(names)}
    hits: Hits = {}
    for query, row in zip(queries, rows, strict=True):
        places = np.sort(np.array([place[name] for name in candidates.get(query, ())], np.int64))
        order = stored.pick(places).search(row[None], len(places))[0] if len(places) else ()
        hits[query] = _by_rank([names[places[one]] for one in order])
    return hits


def _by_rank(names: Sequence[str]) -> dict[str, float]:
    return {name: float(len(names) - rank) for rank, name in enumerate(names)}


def _recall(found: Places, own: Places) -> float:
    """Return the mean share of the first documents in `own` that are among the first in `found`."""
    import numpy as np

    hits = (own[:, :, None] == found[:, None, : own.shape[1]]).any(-1)
    return float(np.mean(hits)) if hits.size else 1.0


def _hash_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
