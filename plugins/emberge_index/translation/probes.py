"""Texts that two models embed: documents, queries, and the relevant documents of each query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from emberge import Backbone, DataError, ModelRef, Workspace

if TYPE_CHECKING:
    from emberge.data import StoredDataset
    from emberge.encoding import EmbeddingStore, Vectors


Side = Literal["documents", "queries"]
# Names of a model's own prompts by the side that they belong to, the first that it has.
PROMPTS: dict[Side, tuple[str, ...]] = {
    "documents": ("document", "passage"),
    "queries": ("query",),
}


@dataclass(frozen=True, eq=False)
class Probes:
    """Distinct documents and queries; `relevant` has the document indices of each query."""

    documents: Sequence[str]
    queries: Sequence[str]
    relevant: Sequence[Sequence[int]]

    def of(self, side: Side) -> Sequence[str]:
        """Return the texts of a side, documents or queries."""
        return self.documents if side == "documents" else self.queries


@dataclass(frozen=True, eq=False)
class EmbeddedProbes:
    """Vectors of documents and queries by one model, and the prompts used."""

    name: str
    fingerprint: str
    documents: Vectors
    queries: Vectors | None
    prompts: dict[Side, str]

    def of(self, side: Side) -> Vectors:
        """Return the vectors of a side, documents or queries.

        Raises:
            DataError: if the side is queries and the data has none.
        """
        vectors = self.documents if side == "documents" else self.queries
        if vectors is None:
            raise DataError("the data has no queries; give pairs, or fit on documents")
        return vectors


def probes_of(sets: Sequence[StoredDataset], work: Path) -> Probes:
    """Return the texts of data sets: passages and single texts as documents, anchors of pairs as queries."""
    from emberge.data import DistinctTexts

    places = _Pairs()
    documents = DistinctTexts(places.documents(sets), work)
    queries = DistinctTexts(places.queries(sets), work)
    relevant: list[dict[int, None]] = [{} for _ in range(len(queries))]
    for query, document in places.pairs:
        relevant[int(queries.places[query])][int(documents.places[document])] = None
    return Probes(documents, queries, [list(numbers) for numbers in relevant])


class _Pairs:
    """Index pairs of queries and their positives, collected while documents and queries are listed."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._documents = 0

    def documents(self, sets: Sequence[StoredDataset]) -> Iterator[str]:
        query = 0
        for dataset in sets:
            for row in range(len(dataset)):
                example = dataset[row]
                if not example.positives:
                    yield example.anchor
                    self._documents += 1
                    continue
                for text in example.positives:
                    yield text
                    self.pairs.append((query, self._documents))
                    self._documents += 1
                yield from example.negatives
                self._documents += len(example.negatives)
                query += 1

    def queries(self, sets: Sequence[StoredDataset]) -> Iterator[str]:
        for dataset in sets:
            for row in range(len(dataset)):
                example = dataset[row]
                if example.positives:
                    yield example.anchor


def own_prompt(prompts: dict[str, str], side: Side) -> str:
    """Return the model's prompt for documents or queries; "" without one."""
    return next((prompts[name] for name in PROMPTS[side] if prompts.get(name)), "")


def embed(
    reference: ModelRef,
    probes: Probes,
    workspace: Workspace,
    *,
    backbone: Backbone,
    max_length: int | None,
    prompts: dict[Side, str | None],
) -> EmbeddedProbes:
    """Return the vectors of documents and queries by one model, embedded through the steps' shared store."""
    model = workspace.model(reference)
    with _open_store(reference, workspace, backbone) as store:
        model_prompts = dict(store.encoder.prompts)
        prompt_by_side: dict[Side, str] = {
            side: own_prompt(model_prompts, side) if prompt is None else prompt
            for side, prompt in prompts.items()
        }
        vectors = {
            side: store.embed(probes.of(side), prompt=prompt_by_side[side], max_length=max_length)
            for side in prompt_by_side
            if len(probes.of(side))
        }
    return EmbeddedProbes(
        model.name, model.fingerprint, vectors["documents"], vectors.get("queries"), prompt_by_side
    )


@contextmanager
def _open_store(
    reference: ModelRef, workspace: Workspace, backbone: Backbone
) -> Iterator[EmbeddingStore]:
    """Open the embedding store of a model, which is loaded inside the `with` block."""
    from emberge.encoding import EmbeddingStore

    model = workspace.model(reference)
    with workspace.whole_model(model) as folder:
        encoder = backbone.load(folder, device=workspace.machine.device, dtype="float32")
        yield EmbeddingStore(
            workspace.store,
            encoder,
            model=f"{model.fingerprint} {backbone!r}",
            name=model.name,
            progress=workspace.progress,
        )
