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

from emberge.contracts import Backbone, Dataset, Encoder, Guide, Model, ModelRef
from emberge.encoding import EmbeddingStore, TextEmbedder
from emberge.errors import CheckpointError, DataError
from emberge.ranks import ALONE, Ranks
from emberge.training.objective import Objective
from emberge.training.tables.example_table import ExampleTable, TextSide, build_table

EmbedSequences = Callable[[NDArray[np.int64]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class GuideReader:
    """A guide model's embeddings of a dataset's texts; `table` has the texts as tokens of its tokenizer.

    `embedded` returns the embeddings, float32 [n, dimension], of n sequences of the table: from a store,
    while the guide is not in memory, or from the guide, which then embeds each batch's texts once.
    """

    table: ExampleTable
    embedded: EmbedSequences
    dimension: int
    device: str

    def __call__(self, entries: NDArray[np.int64]) -> Tensor:
        """Return embeddings [*entries.shape, d] without a gradient; zeros if an entry is -1."""
        is_text = entries >= 0
        sequences, index = np.unique(self.table.entries[entries[is_text]], return_inverse=True)
        embeddings = self.embedded(sequences.astype(np.int64))
        result = torch.zeros(*entries.shape, self.dimension, dtype=torch.float32)
        result[torch.from_numpy(is_text)] = torch.from_numpy(embeddings[index])
        return result.to(self.device)


def add_guides(
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
    progress: Callable[..., None] | None = None,
) -> dict[str, ExampleTable]:
    """Return the tables, each with the guide that its dataset's losses name.

    All texts are embedded now and kept in `store` if the guide asks for it (`Guide.ahead`), or if batches are
    read `again`, as in a second epoch; a guide that is used only for such datasets leaves memory before the
    next one is loaded. `progress(done, total, unit, note)` is called while texts are embedded.

    Raises:
        DataError: if losses of one dataset have different guides.
        CheckpointError: if a guide cannot be loaded, or is an adapter.
    """
    guided_tables = dict(tables)
    for guide, guided_datasets in _group_by_guide(datasets, objective):
        if model_of is None:
            raise DataError(
                f"dataset '{guided_datasets[0].info.name}': its loss has a guide, and the job has no "
                "`guides` to find it by"
            )
        model = _GuideModel.load(guide, model_of(guide.model), backbone, device)
        for dataset in guided_datasets:
            table = build_table(
                dataset, model.encoder, _build_sides(dataset, model.encoder, guide), store
            )
            embedded = (
                model.store_vectors(table, store, ranks, progress)
                if guide.ahead or again
                else model.embed_on_demand(table)
            )
            name = dataset.info.name
            reader = GuideReader(table, embedded, model.encoder.dimension, device)
            guided_tables[name] = dataclasses.replace(guided_tables[name], guide=reader)
        del model  # unless a reader embeds on demand, nothing else has it in memory
    return guided_tables


def _group_by_guide(
    datasets: Sequence[Dataset], objective: Objective
) -> list[tuple[Guide, list[Dataset]]]:
    """Return each guide with the datasets whose losses have it."""
    groups: list[tuple[Guide, list[Dataset]]] = []
    for dataset in datasets:
        guide = _find_guide(dataset.info.name, objective)
        if guide is None:
            continue
        group = next((group for known, group in groups if known == guide), None)
        if group is None:
            groups.append((guide, [dataset]))
        else:
            group.append(dataset)
    return groups


@dataclass(frozen=True)
class _GuideModel:
    """Loaded model of a guide; `content` has all facts on which its embeddings depend."""

    name: str
    encoder: Encoder
    content: str

    @classmethod
    def load(cls, guide: Guide, model: Model, trained: Backbone, device: str) -> _GuideModel:
        if model.adapter is not None:
            raise CheckpointError(
                f"{model.name}: a guide is a whole model, not an adapter; merge it first"
            )
        backbone = guide.choose_backbone(trained)
        encoder = backbone.load(model.folder, device=device, dtype="float32")
        encoder.module.requires_grad_(False)
        return cls(model.name, encoder, f"{model.fingerprint} {backbone!r}")

    def embed_on_demand(self, table: ExampleTable) -> EmbedSequences:
        """Return the function that embeds sequences of a table on demand."""

        def embedded(sequences: NDArray[np.int64]) -> NDArray[np.float32]:
            texts = [table.sequences[int(sequence)] for sequence in sequences]
            return TextEmbedder(self.encoder).embed_tokens(texts)

        return embedded

    def store_vectors(
        self,
        table: ExampleTable,
        store: Path,
        ranks: Ranks,
        progress: Callable[..., None] | None,
    ) -> EmbedSequences:
        """Return the function that reads a table's embeddings, which are now computed and stored."""
        note = f"embedding by {self.name}"

        def report(done: int, total: int, unit: str) -> None:
            if progress is not None:
                progress(done, total, unit, note)

        vectors = EmbeddingStore(
            store,
            self.encoder,
            model=self.content,
            ranks=ranks,
            name=self.name,
            progress=report,
        )
        return vectors.embed_tokens(table.sequences).__getitem__


def _find_guide(dataset: str, objective: Objective) -> Guide | None:
    guides = [loss.guided_by for loss in objective.of(dataset) if loss.guided_by is not None]
    if any(guide != guides[0] for guide in guides):
        raise DataError(f"dataset '{dataset}': its losses have different guides; give them one")
    return guides[0] if guides else None


def _build_sides(dataset: Dataset, encoder: Encoder, guide: Guide) -> tuple[TextSide, TextSide]:
    prompts = encoder.prompts
    query = TextSide(prompts.get("query", ""), guide.max_length)
    document = TextSide(prompts.get("document", prompts.get("passage", "")), guide.max_length)
    if dataset.symmetric:
        return query, query
    # Single texts are documents, as in the trained model's table.
    return (document, document) if dataset.info.task == "text" else (query, document)
