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


@dataclass(frozen=True, eq=False)
class GuideReader:
    """A guide's embeddings of a dataset's texts; `table` has the texts as tokens of the guide's tokenizer.

    `embedded` returns the embeddings, float32 [n, dimension], of n sequences of the table: from a store,
    while the guide is not in memory, or from the guide, which then embeds each batch's texts once.
    """

    table: ExampleTable
    embedded: Callable[[NDArray[np.int64]], NDArray[np.float32]]
    dimension: int
    device: str

    def __call__(self, entries: NDArray[np.int64]) -> Tensor:
        """Return embeddings [*entries.shape, d] without a gradient; zeros if an entry is -1."""
        is_text = entries >= 0
        sequences, index = np.unique(self.table.entries[entries[is_text]], return_inverse=True)
        embeddings = self.embedded(sequences.astype(np.int64))
        result = torch.zeros(*entries.shape, self.dimension)
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
    all_rows: bool = False,
    ranks: Ranks = ALONE,
) -> dict[str, ExampleTable]:
    """Return the tables, each with the guide that its dataset's losses name.

    All texts are embedded now and kept in `store` in two cases: if batches are read `again`, as in a second
    epoch, or if the training reads `all_rows` and embeds no positives itself, so that the guide's embeddings
    replace an index. A guide that is used only for such datasets is removed from memory before the function
    returns.

    Raises:
        DataError: if losses of one dataset have different guides.
        CheckpointError: if a guide cannot be loaded, or is an adapter.
    """
    loaded: list[_LoadedGuide] = []
    guided_tables = dict(tables)
    for dataset in datasets:
        name = dataset.info.name
        guide = _find_guide(name, objective)
        if guide is None:
            continue
        if model_of is None:
            raise DataError(
                f"dataset '{name}': its loss has a guide, and the job has no `guides` to find it by"
            )
        if all(candidate.guide != guide for candidate in loaded):
            loaded.append(_LoadedGuide.of(guide, model_of(guide.model), backbone, device))
        loaded_guide = next(candidate for candidate in loaded if candidate.guide == guide)
        encoder = loaded_guide.encoder
        table = build_table(dataset, encoder, _build_sides(dataset, encoder, guide), store)
        embedded = loaded_guide.embedded_from(table)
        if again or (all_rows and "positive" not in objective.embeds(name)):
            vectors = EmbeddingStore(store, encoder, model=loaded_guide.model, ranks=ranks)
            embedded = vectors.embed_tokens(table.sequences).__getitem__
        reader = GuideReader(table, embedded, encoder.dimension, device)
        guided_tables[name] = dataclasses.replace(guided_tables[name], guide=reader)
    return guided_tables


@dataclass(frozen=True)
class _LoadedGuide:
    """Loaded guide model; `model` has all facts on which its embeddings depend."""

    guide: Guide
    encoder: Encoder
    model: str

    @classmethod
    def of(cls, guide: Guide, model: Model, beside: Backbone, device: str) -> _LoadedGuide:
        backbone = guide.choose_backbone(beside)
        encoder = backbone.load(_find_folder(model), device=device, dtype="float32")
        encoder.module.requires_grad_(False)
        return cls(guide, encoder, f"{model.fingerprint} {backbone!r}")

    def embedded_from(
        self, table: ExampleTable
    ) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
        """Return the function that embeds sequences of a table on demand."""

        def embedded(sequences: NDArray[np.int64]) -> NDArray[np.float32]:
            texts = [table.sequences[int(sequence)] for sequence in sequences]
            return TextEmbedder(self.encoder).embed_tokens(texts)

        return embedded


def _find_folder(guide: Model) -> Path:
    if guide.adapter is not None:
        raise CheckpointError(
            f"{guide.name}: a guide is a whole model, not an adapter; merge it first"
        )
    return guide.folder


def _find_guide(dataset: str, objective: Objective) -> Guide | None:
    guides = [loss.guided_by for loss in objective.of(dataset) if loss.guided_by is not None]
    if any(guide != guides[0] for guide in guides):
        raise DataError(f"dataset '{dataset}': its losses have different guides; give them one")
    return guides[0] if guides else None


def _build_sides(dataset: Dataset, encoder: Encoder, guide: Guide) -> tuple[TextSide, TextSide]:
    prompts = encoder.prompts
    query = TextSide(prompts.get("query", ""), guide.max_length)
    if dataset.symmetric:
        return query, query
    return query, TextSide(prompts.get("document", prompts.get("passage", "")), guide.max_length)
