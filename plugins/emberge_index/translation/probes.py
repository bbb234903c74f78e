"""Texts that two models embed: documents, queries, and which document belongs to which query."""

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
    """Distinct documents and queries; `relevant` has for each query the places of its documents."""

    documents: Sequence[str]
    queries: Sequence[str]
    relevant: Sequence[Sequence[int]]

    def of(self, side: Side) -> Sequence[str]:
        """Return the texts of a side."""
        return self.documents if side == "documents" else self.queries


@dataclass(frozen=True, eq=False)
class EmbeddedProbes:
    """Vectors of both sides by one model, and the prompts before them."""

    name: str
    fingerprint: str
    documents: Vectors
    queries: Vectors | None
    prompts: dict[Side, str]

    def of(self, side: Side) -> Vectors:
        """Return the vectors of a side.

        Raises:
            DataError: for queries of data that has none.
        """
        found = self.documents if side == "documents" else self.queries
        if found is None:
            raise DataError("the data has no queries; give pairs, or fit on documents")
        return found


def probes_of(sets: Sequence[StoredDataset], work: Path) -> Probes:
    """List the texts of sets: passages are documents, anchors of pairs queries; lone texts are documents."""
    from emberge.data import DistinctTexts

    places = _Pairs()
    documents = DistinctTexts(places.documents(sets), work)
    queries = DistinctTexts(places.queries(sets), work)
    relevant: list[dict[int, None]] = [{} for _ in range(len(queries))]
    for query, document in places.pairs:
        relevant[int(queries.places[query])][int(documents.places[document])] = None
    return Probes(documents, queries, [list(one) for one in relevant])


class _Pairs:
    """Numbers of queries and of their positives, in the order in which both are listed."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._documents = 0

    def documents(self, sets: Sequence[StoredDataset]) -> Iterator[str]:
        query = 0
        for dataset in sets:
            for row in range(len(dataset)):
                one = dataset[row]
                if not one.positives:
                    yield one.anchor
                    self._documents += 1
                    continue
                for text in one.positives:
                    yield text
                    self.pairs.append((query, self._documents))
                    self._documents += 1
                yield from one.negatives
                self._documents += len(one.negatives)
                query += 1

    def queries(self, sets: Sequence[StoredDataset]) -> Iterator[str]:
        for dataset in sets:
            for row in range(len(dataset)):
                one = dataset[row]
                if one.positives:
                    yield one.anchor


def own_prompt(prompts: dict[str, str], side: Side) -> str:
    """Return the model's own prompt for a side; none where it has none."""
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
    """Embed both sides by one model, through the store that steps share."""
    model = workspace.model(reference)
    with _open_store(reference, workspace, backbone) as store:
        own = dict(store.encoder.prompts)
        used: dict[Side, str] = {
            side: own_prompt(own, side) if given is None else given
            for side, given in prompts.items()
        }
        found = {
            side: store.embed(probes.of(side), prompt=used[side], max_length=max_length)
            for side in used
            if len(probes.of(side))
        }
    return EmbeddedProbes(
        model.name, model.fingerprint, found["documents"], found.get("queries"), used
    )


@contextmanager
def _open_store(
    reference: ModelRef, workspace: Workspace, backbone: Backbone
) -> Iterator[EmbeddingStore]:
    """Load a model for as long as the context lasts."""
    from emberge.encoding import EmbeddingStore

    model = workspace.model(reference)
    with workspace.whole_model(model) as folder:
        encoder = backbone.load(folder, device=workspace.machine.device, dtype="float32")
        yield EmbeddingStore(
            workspace.store,
            encoder,
            model=f"{model.fingerprint} {backbone!r}",
            name=model.name,
            progress=lambda done, total, unit: workspace.progress(done, total, unit, model.name),
        )
