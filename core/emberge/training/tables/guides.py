"""Guides of losses: frozen models that read the same rows, and embed the texts of a batch once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts.backbone import Backbone, Encoder
from emberge.contracts.dataset import Dataset
from emberge.contracts.loss import Guide
from emberge.contracts.reference import Model, ModelRef
from emberge.encoding.embedder import TextEmbedder
from emberge.encoding.embedding_store import EmbeddingStore, Vectors
from emberge.errors import CheckpointError, DataError
from emberge.ranks.ranks import ALONE, Ranks
from emberge.training.objective import Objective
from emberge.training.tables.example_table import ExampleTable, Side, build_table

__all__ = ["GuideReader", "with_guides"]


@dataclass(frozen=True, eq=False)
class GuideReader:
    """Embeddings by a guide of a dataset's texts; `table` has them as its own tokenizer reads them.

    `known` has the embeddings of the table's sequences, where batches read them more than once. Without it
    every batch is embedded anew, its texts once.
    """

    encoder: Encoder
    table: ExampleTable
    known: Vectors | None = None

    def __call__(self, entries: NDArray[np.int64]) -> Tensor:
        """Return embeddings [*entries.shape, d] without a gradient, zeros where an entry is -1."""
        there = entries >= 0
        sequences, place = np.unique(self.table.entries[entries[there]], return_inverse=True)
        found = self._embedded(sequences.astype(np.int64))
        result = torch.zeros(*entries.shape, self.encoder.dimension)
        result[torch.from_numpy(there)] = torch.from_numpy(found[place])
        return result.to(next(self.encoder.module.parameters()).device)

    def _embedded(self, sequences: NDArray[np.int64]) -> NDArray[np.float32]:
        if self.known is not None:
            return self.known[sequences]
        texts = [self.table.sequences[int(sequence)] for sequence in sequences]
        return TextEmbedder(self.encoder).embed_tokens(texts)


def with_guides(
    tables: Mapping[str, ExampleTable],
    datasets: Sequence[Dataset],
    objective: Objective,
    *,
    model_of: Callable[[ModelRef], Model] | None,
    backbone: Backbone,
    device: str,
    store: Path,
    again: bool = False,
    ranks: Ranks = ALONE,
) -> dict[str, ExampleTable]:
    """Return the tables, each with the guide that its dataset's losses name.

    If batches come `again`, as those of a second epoch do, all texts are embedded now, and kept in `store`.

    Raises:
        DataError: for losses of one dataset with different guides.
        CheckpointError: for a guide that cannot be loaded, or is an adapter.
    """
    loaded: list[_Loaded] = []
    found = dict(tables)
    for dataset in datasets:
        name = dataset.info.name
        guide = _guide_of(name, objective)
        if guide is None:
            continue
        if model_of is None:
            raise DataError(
                f"dataset '{name}': its loss has a guide, and the job has no `guides` to find it by"
            )
        if all(one.guide != guide for one in loaded):
            loaded.append(_Loaded.of(guide, model_of(guide.model), backbone, device))
        own = next(one for one in loaded if one.guide == guide)
        table = build_table(dataset, own.encoder, _sides(dataset, own.encoder, guide), store)
        known = None
        if again:
            vectors = EmbeddingStore(store, own.encoder, model=own.model, ranks=ranks)
            known = vectors.embed_tokens(table.sequences)
        reader = GuideReader(own.encoder, table, known)
        found[name] = dataclasses.replace(found[name], guide=reader)
    return found


@dataclass(frozen=True)
class _Loaded:
    """Loaded guide; `model` names all that decides its embeddings."""

    guide: Guide
    encoder: Encoder
    model: str

    @classmethod
    def of(cls, guide: Guide, model: Model, beside: Backbone, device: str) -> _Loaded:
        backbone = guide.backbone_beside(beside)
        encoder = backbone.load(_folder(model), device=device, dtype="float32")
        encoder.module.requires_grad_(False)
        return cls(guide, encoder, f"{model.fingerprint} {backbone!r}")


def _folder(guide: Model) -> Path:
    if guide.adapter is not None:
        raise CheckpointError(
            f"{guide.name}: a guide is a whole model, not an adapter; merge it first"
        )
    return guide.folder


def _guide_of(dataset: str, objective: Objective) -> Guide | None:
    guides = [loss.guided_by for loss in objective.of(dataset) if loss.guided_by is not None]
    if any(guide != guides[0] for guide in guides):
        raise DataError(f"dataset '{dataset}': its losses have different guides; give them one")
    return guides[0] if guides else None


def _sides(dataset: Dataset, encoder: Encoder, guide: Guide) -> tuple[Side, Side]:
    own = encoder.prompts
    query = Side(own.get("query", ""), guide.max_length)
    if dataset.symmetric:
        return query, query
    return query, Side(own.get("document", own.get("passage", "")), guide.max_length)
