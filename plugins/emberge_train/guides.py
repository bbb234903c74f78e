"""Guides of losses: frozen models that read the same rows, and embed the texts of a batch once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from emberge import Backbone, CheckpointError, DataError, Encoder, Loss, Model, ModelRef, PerDataset
from emberge.contracts import AnyLoss, Dataset
from emberge.encoding import TextEmbedder, find_document_prompt
from emberge.training import GuideRequest, ReadGuide, TextSide, build_table
from emberge_encoder import EmbeddingStore
from numpy.typing import NDArray
from torch import Tensor

from emberge_train.losses.guided_loss import Guide, find_guide

EmbedSequences = Callable[[NDArray[np.int64]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class GuideReader:
    """Guides of the losses of a training, whose own backbone is `backbone`.

    A call returns for each dataset with a guide the function from entries of its table to the guide's
    embeddings. If the guide asks for it (`Guide.ahead`), or if batches are read `again`, as in a second
    epoch, all texts are embedded in the call and kept in the store; the guide then leaves memory before the
    next one is loaded.

    Raises:
        DataError: if losses of one dataset have different guides, or one lacks a guide.
        CheckpointError: if a guide cannot be loaded, or is an adapter.
    """

    losses: PerDataset[tuple[AnyLoss, ...]]
    find_model: Callable[[ModelRef], Model]
    backbone: Backbone

    def __call__(self, request: GuideRequest) -> Mapping[str, ReadGuide]:
        readers: dict[str, ReadGuide] = {}
        for guide, datasets in self._group_by_guide(request.datasets):
            model = self._load(guide, request)
            readers |= {dataset.info.name: model.read_dataset(dataset) for dataset in datasets}
            del model  # unless a reader embeds on demand, nothing else has it in memory
        return readers

    def _group_by_guide(self, datasets: Sequence[Dataset]) -> list[tuple[Guide, list[Dataset]]]:
        """Return each guide with the datasets whose losses have it."""
        groups: list[tuple[Guide, list[Dataset]]] = []
        for dataset in datasets:
            name = dataset.info.name
            losses = self.losses.of(name, dataset.info.task) or ()
            try:
                guide = find_guide([loss for loss in losses if isinstance(loss, Loss)])
            except ValueError as error:
                raise DataError(f"dataset '{name}': {error}") from error
            if guide is None:
                continue
            group = next((group for known, group in groups if known == guide), None)
            if group is None:
                groups.append((guide, [dataset]))
            else:
                group.append(dataset)
        return groups

    def _load(self, guide: Guide, request: GuideRequest) -> _GuideModel:
        model = self.find_model(guide.model)
        if model.adapter is not None:
            raise CheckpointError(
                f"{model.name}: a guide is a whole model, not an adapter; merge it first"
            )
        backbone = guide.choose_backbone(self.backbone)
        encoder = backbone.load(model.folder, device=request.device, dtype="float32")
        encoder.module.requires_grad_(False)
        return _GuideModel(guide, model.name, encoder, f"{model.fingerprint} {backbone!r}", request)


@dataclass(frozen=True, eq=False)
class _GuideModel:
    """Loaded model of a guide; `content` has all facts on which its embeddings depend."""

    guide: Guide
    name: str
    encoder: Encoder
    content: str
    request: GuideRequest

    def read_dataset(self, dataset: Dataset) -> ReadGuide:
        """Return the function from entries [*k] to embeddings [*k, d] without a gradient, zeros for -1."""
        device, dimension = self.request.device, self.encoder.dimension
        table = build_table(dataset, self.encoder, self._build_sides(dataset), self.request.store)
        if self.guide.ahead or self.request.reads_rows_again:
            embed: EmbedSequences = self._open_store().embed_tokens(table.sequences).__getitem__
        else:
            embedder = TextEmbedder(self.encoder)

            def embed(sequences: NDArray[np.int64]) -> NDArray[np.float32]:
                return embedder.embed_tokens([table.sequences[int(s)] for s in sequences])

        def read(entries: NDArray[np.int64]) -> Tensor:
            is_text = entries >= 0
            sequences, index = np.unique(table.entries[entries[is_text]], return_inverse=True)
            result = torch.zeros(*entries.shape, dimension, dtype=torch.float32)
            embeddings = embed(sequences.astype(np.int64))
            result[torch.from_numpy(is_text)] = torch.from_numpy(embeddings[index])
            return result.to(device)

        return read

    def _open_store(self) -> EmbeddingStore:
        request, note = self.request, f"embedding by {self.name}"
        return EmbeddingStore(
            request.store,
            self.encoder,
            model_key=self.content,
            ranks=request.ranks,
            model_name=self.name,
            progress=lambda done, total, unit: request.progress(done, total, unit, note),
        )

    def _build_sides(self, dataset: Dataset) -> tuple[TextSide, TextSide]:
        longest = self.guide.max_length
        query = TextSide(self.encoder.prompts.get("query", ""), longest)
        document = TextSide(find_document_prompt(self.encoder), longest)
        if dataset.symmetric:
            return query, query
        # Single texts are documents, as in the trained model's table.
        return (document, document) if dataset.info.task == "text" else (query, document)
