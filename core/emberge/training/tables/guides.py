"""Guides of losses: frozen models that read the same rows, and embed the texts of a batch once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from emberge.contracts import Backbone, Dataset, Encoder, FileRef, Guide, Model, ModelRef
from emberge.encoding import EmbeddingStore, SpaceMap, TextEmbedder, read_space_map
from emberge.errors import CheckpointError, DataError
from emberge.numerics import unit_rows
from emberge.ranks import ALONE, Ranks
from emberge.training.objective import Objective
from emberge.training.tables.example_table import ExampleTable, TextSide, build_table

# Rows of a dataset by whose anchors the spaces of an ensemble's models are compared.
PROBED_ROWS = 64


@dataclass(frozen=True, eq=False)
class GuideReader:
    """A guide model's embeddings of a dataset's texts; `table` has the texts as tokens of its tokenizer.

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
        result = torch.zeros(*entries.shape, self.dimension, dtype=torch.float32)
        result[torch.from_numpy(is_text)] = torch.from_numpy(embeddings[index])
        return result.to(self.device)


@dataclass(frozen=True, eq=False)
class EnsembleReader:
    """Embeddings of a dataset's texts by several guide models, combined as `Guide.combine` names it.

    `space_maps` translate the vectors of some models into the space of the first one.
    """

    readers: Sequence[GuideReader]
    space_maps: Sequence[SpaceMap | None]
    combine: Literal["vectors", "scores"]

    def __call__(self, entries: NDArray[np.int64]) -> Tensor:
        """Return embeddings [*entries.shape, d] of length one without a gradient; zeros for entry -1."""
        vectors = [
            normalize(_translate(reader(entries), space_map), dim=-1)
            for reader, space_map in zip(self.readers, self.space_maps, strict=True)
        ]
        if self.combine == "vectors":
            return normalize(torch.stack(vectors).mean(0), dim=-1)
        # The inner product of two rows is then the mean of the models' cosines.
        return torch.cat(vectors, dim=-1) / math.sqrt(len(vectors))


def _translate(vectors: Tensor, space_map: SpaceMap | None) -> Tensor:
    if space_map is None:
        return vectors
    rows = vectors.reshape(-1, vectors.shape[-1]).cpu().numpy()
    translated = torch.from_numpy(space_map.apply(rows)).to(vectors.device)
    return translated.view(*vectors.shape[:-1], -1)


def add_guides(
    tables: Mapping[str, ExampleTable],
    datasets: Sequence[Dataset],
    objective: Objective,
    *,
    model_of: Callable[[ModelRef], Model] | None,
    file_of: Callable[[FileRef], Path] | None = None,
    backbone: Backbone,
    device: str,
    store: Path,
    again: bool = False,
    all_rows: bool = False,
    ranks: Ranks = ALONE,
) -> dict[str, ExampleTable]:
    """Return the tables, each with the guide that its dataset's losses name.

    All texts are embedded now and kept in `store` in three cases: if the guide asks for it (`Guide.ahead`),
    if batches are read `again`, as in a second epoch, or if the training reads `all_rows` and embeds no
    positives itself, so that the guide's embeddings replace an index. A guide that is used only for such
    datasets is removed from memory before the function returns.

    Raises:
        DataError: if losses of one dataset have different guides, or the models of a guide do not share a
            space.
        CheckpointError: if a guide cannot be loaded, or is an adapter.
    """
    loaded: dict[int, _LoadedGuide] = {}
    guides: list[Guide] = []
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
        if guide not in guides:
            guides.append(guide)
        number = guides.index(guide)
        if number not in loaded:
            loaded[number] = _LoadedGuide.of(guide, model_of, file_of, backbone, device)
        is_stored = guide.ahead or again or (all_rows and "positive" not in objective.embeds(name))
        reader = loaded[number].read(dataset, store, is_stored=is_stored, ranks=ranks)
        guided_tables[name] = dataclasses.replace(guided_tables[name], guide=reader)
    return guided_tables


@dataclass(frozen=True)
class _LoadedModel:
    """Loaded model of a guide; `content` has all facts on which its embeddings depend."""

    name: str
    encoder: Encoder
    content: str

    @classmethod
    def of(cls, model: Model, backbone: Backbone, device: str) -> _LoadedModel:
        encoder = backbone.load(_find_folder(model), device=device, dtype="float32")
        encoder.module.requires_grad_(False)
        return cls(model.name, encoder, f"{model.fingerprint} {backbone!r}")

    def read(
        self, table: ExampleTable, store: Path, *, is_stored: bool, device: str, ranks: Ranks
    ) -> GuideReader:
        """Return the reader of a table's embeddings, which are computed now if they are stored."""
        embedded = self.embed_on_demand(table)
        if is_stored:
            vectors = EmbeddingStore(
                store, self.encoder, model=self.content, ranks=ranks, name=self.name
            )
            embedded = vectors.embed_tokens(table.sequences).__getitem__
        return GuideReader(table, embedded, self.encoder.dimension, device)

    def embed_on_demand(
        self, table: ExampleTable
    ) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
        """Return the function that embeds sequences of a table on demand."""

        def embedded(sequences: NDArray[np.int64]) -> NDArray[np.float32]:
            texts = [table.sequences[int(sequence)] for sequence in sequences]
            return TextEmbedder(self.encoder).embed_tokens(texts)

        return embedded


@dataclass(frozen=True)
class _LoadedGuide:
    """Loaded models of a guide, with the translation of each into the space of the first, or None."""

    guide: Guide
    models: Sequence[_LoadedModel]
    space_maps: Sequence[SpaceMap | None]
    device: str

    @classmethod
    def of(
        cls,
        guide: Guide,
        model_of: Callable[[ModelRef], Model],
        file_of: Callable[[FileRef], Path] | None,
        beside: Backbone,
        device: str,
    ) -> _LoadedGuide:
        backbone = guide.choose_backbone(beside)
        found_models = [model_of(reference) for reference in guide.models]
        if guide.translations and file_of is None:
            raise DataError("a guide has translations, and the job has no `files` to find them by")
        files = [file_of(file) for file in guide.translations] if file_of is not None else []
        space_maps = match_translations(found_models, list(map(read_space_map, files)))
        loaded_models = [_LoadedModel.of(model, backbone, device) for model in found_models]
        return cls(guide, loaded_models, space_maps, device)

    def read(
        self, dataset: Dataset, store: Path, *, is_stored: bool, ranks: Ranks
    ) -> GuideReader | EnsembleReader:
        """Return the reader of a dataset's embeddings.

        Raises:
            DataError: if the models do not share a space, and their vectors are to be averaged.
        """
        tables = []
        for loaded_model in self.models:
            encoder = loaded_model.encoder
            sides = _build_sides(dataset, encoder, self.guide)
            tables.append(build_table(dataset, encoder, sides, store))
        if len(tables) > 1 and self.guide.combine == "vectors":
            self._require_one_space(tables)
        readers = [
            loaded_model.read(table, store, is_stored=is_stored, device=self.device, ranks=ranks)
            for loaded_model, table in zip(self.models, tables, strict=True)
        ]
        if len(readers) == 1:
            return readers[0]
        return EnsembleReader(readers, self.space_maps, self.guide.combine)

    def _require_one_space(self, tables: Sequence[ExampleTable]) -> None:
        """Refuse an ensemble of vectors whose models give the same texts unlike vectors.

        A model shares the space of the first one if the first one's vectors find its vectors of the same
        texts, among those of PROBED_ROWS rows of the data, more often than not.

        Raises:
            DataError: if a model does not.
        """
        rows = tables[0].starts[: min(PROBED_ROWS, len(tables[0].starts) - 1)]
        first_of_text = np.unique(tables[0].text_ids[tables[0].entries[rows]], return_index=True)[1]
        probes = [
            space.embed_on_demand(table)(table.entries[rows[first_of_text]].astype(np.int64))
            for space, table in zip(self.models, tables, strict=True)
        ]
        for number, space_map in enumerate(self.space_maps):
            vectors = probes[number] if space_map is None else space_map.apply(probes[number])
            if vectors.shape[1] == probes[0].shape[1] and _find_each(vectors, probes[0]):
                continue
            first, other = self.models[0].name, self.models[number].name
            raise DataError(
                f"{other} and {first} have vectors of different spaces, so a mean of their vectors is of no "
                f"use; name a translation (a step translate with old: {other} and new: {first}), or take a "
                "loss of scores, such as similarity_distillation"
            )


def match_translations(
    models: Sequence[Model], space_maps: Sequence[SpaceMap]
) -> list[SpaceMap | None]:
    """Return each model's translation into the space of the first model, None for models without one.

    Raises:
        DataError: if a translation has another source than one of the models, or another target than the
            first one.
    """
    fingerprints = [model.fingerprint for model in models]
    for space_map in space_maps:
        if space_map.target != fingerprints[0] or space_map.source not in fingerprints[1:]:
            raise DataError(
                f"a translation does not lead from one of {', '.join(m.name for m in models[1:])} to "
                f"{models[0].name}, the first model of the ensemble; fit it by a step translate with old: "
                f"the other model and new: {models[0].name}"
            )
    by_source = {space_map.source: space_map for space_map in space_maps}
    return [by_source.get(fingerprint) for fingerprint in fingerprints]


def _find_each(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> bool:
    """Return whether most rows of `vectors` have the same row of `others` as their nearest one."""
    nearest = (unit_rows(vectors) @ unit_rows(others).T).argmax(1)
    return bool((nearest == np.arange(len(nearest))).mean() > 0.5)


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
    document = TextSide(prompts.get("document", prompts.get("passage", "")), guide.max_length)
    if dataset.symmetric:
        return query, query
    # Single texts are documents, as in the trained model's table.
    return (document, document) if dataset.info.task == "text" else (query, document)
