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
from emberge.errors import CheckpointError, DataError
from emberge.training.objective import Objective
from emberge.training.tables.example_table import ExampleTable, Side, build_table

__all__ = ["GuideReader", "with_guides"]


@dataclass(frozen=True, eq=False)
class GuideReader:
    """Embeddings by a guide of a dataset's texts; `table` has them as its own tokenizer reads them.

    Every batch is embedded anew, its texts once: the bytes then do not depend on what came before, as a
    training that is continued demands.
    """

    encoder: Encoder
    table: ExampleTable

    def __call__(self, entries: NDArray[np.int64]) -> Tensor:
        """Return embeddings [*entries.shape, d] without a gradient, zeros where an entry is -1."""
        there = entries >= 0
        sequences, place = np.unique(self.table.entries[entries[there]], return_inverse=True)
        texts = [self.table.sequences[int(sequence)] for sequence in sequences]
        found = TextEmbedder(self.encoder).embed_tokens(texts)
        result = torch.zeros(*entries.shape, self.encoder.dimension)
        result[torch.from_numpy(there)] = torch.from_numpy(found[place])
        return result.to(next(self.encoder.module.parameters()).device)


def with_guides(
    tables: Mapping[str, ExampleTable],
    datasets: Sequence[Dataset],
    objective: Objective,
    *,
    model_of: Callable[[ModelRef], Model] | None,
    backbone: Backbone,
    device: str,
    store: Path,
) -> dict[str, ExampleTable]:
    """Return the tables, each with the guide that its dataset's losses name.

    Raises:
        DataError: for losses of one dataset with different guides.
        CheckpointError: for a guide that cannot be loaded, or is an adapter.
    """
    loaded: list[tuple[Guide, Encoder]] = []
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
        encoder = next((one for known, one in loaded if known == guide), None)
        if encoder is None:
            encoder = guide.backbone_beside(backbone).load(
                _folder(model_of(guide.model)), device=device, dtype="float32"
            )
            encoder.module.requires_grad_(False)
            loaded.append((guide, encoder))
        table = build_table(dataset, encoder, _sides(dataset, encoder, guide), store)
        found[name] = dataclasses.replace(found[name], guide=GuideReader(encoder, table))
    return found


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
