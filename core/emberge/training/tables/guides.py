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

from emberge.contracts import Backbone, Dataset, Encoder, Guide, Model, ModelRef
from emberge.encoding import EmbeddingStore, TextEmbedder
from emberge.errors import CheckpointError, DataError
from emberge.numerics import unit_rows
from emberge.ranks import ALONE, Ranks
from emberge.training.objective import Objective
from emberge.training.tables.example_table import ExampleTable, TextSide, build_table

# Rows of a dataset by whose anchors the spaces of an ensemble's models are compared.
PROBED_ROWS = 64
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


@dataclass(frozen=True, eq=False)
class EnsembleReader:
    """Embeddings of a dataset's texts by several guide models, combined as `Guide.combine` names it."""

    readers: Sequence[GuideReader]
    combine: Literal["vectors", "scores"]

    def __call__(self, entries: NDArray[np.int64]) -> Tensor:
        """Return embeddings [*entries.shape, d] of length one without a gradient; zeros for entry -1."""
        vectors = [normalize(reader(entries), dim=-1) for reader in self.readers]
        if self.combine == "vectors":
            return normalize(torch.stack(vectors).mean(0), dim=-1)
        # The inner product of two rows is then the mean of the models' cosines.
        return torch.cat(vectors, dim=-1) / math.sqrt(len(vectors))


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
    read `again`, as in a second epoch. The models of a guide are loaded one
    after another, and those that are used only for such datasets leave memory before the next one is loaded.
    `progress(done, total, unit, note)` is called while texts are embedded.

    Raises:
        DataError: if losses of one dataset have different guides, or the models of a guide do not share a
            space.
        CheckpointError: if a guide cannot be loaded, or is an adapter.
    """
    guided_tables = dict(tables)
    for guide, guided_datasets in _group_by_guide(datasets, objective):
        if model_of is None:
            raise DataError(
                f"dataset '{guided_datasets[0].info.name}': its loss has a guide, and the job has no "
                "`guides` to find it by"
            )
        reading = _GuideReading(
            guide, guided_datasets, guide.ahead or again, backbone, device, store, ranks, progress
        )
        for name, reader in reading.read(model_of).items():
            guided_tables[name] = dataclasses.replace(guided_tables[name], guide=reader)
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
class _GuideReading:
    """Reading of datasets by a guide's models, one model after another.

    With `stores` the embeddings are computed now and kept in `store`.
    """

    guide: Guide
    datasets: Sequence[Dataset]
    stores: bool
    beside: Backbone
    device: str
    store: Path
    ranks: Ranks
    progress: Callable[..., None] | None

    def read(
        self, model_of: Callable[[ModelRef], Model]
    ) -> dict[str, GuideReader | EnsembleReader]:
        """Return the reader of each dataset's embeddings.

        Raises:
            DataError: if the models do not share a space, and their vectors are to be averaged.
        """
        models = [model_of(reference) for reference in self.guide.models]
        probes: dict[str, tuple[str, NDArray[np.float32]]] = {}
        parts = [self._read_by(model, probes) for model in models]
        if len(parts) == 1:
            return dict(parts[0])
        return {
            name: EnsembleReader([part[name] for part in parts], self.guide.combine)
            for name in parts[0]
        }

    def _read_by(
        self, model: Model, probes: dict[str, tuple[str, NDArray[np.float32]]]
    ) -> dict[str, GuideReader]:
        """Return one model's reader of each dataset; a model that stores them is then unreferenced.

        `probes` are the first model's name and vectors of some texts, by dataset; that model adds them.
        """
        backbone = self.guide.choose_backbone(self.beside)
        loaded_model = _LoadedModel.of(model, backbone, self.device)
        compares = bool(self.guide.ensemble) and self.guide.combine == "vectors"
        readers = {}
        for dataset in self.datasets:
            name, encoder = dataset.info.name, loaded_model.encoder
            table = build_table(
                dataset, encoder, _build_sides(dataset, encoder, self.guide), self.store
            )
            if compares:
                probe = loaded_model.embed_on_demand(table)(_choose_probes(table))
                _require_one_space(model.name, probe, *probes.setdefault(name, (model.name, probe)))
            readers[name] = self._read_table(loaded_model, table)
        return readers

    def _read_table(self, loaded_model: _LoadedModel, table: ExampleTable) -> GuideReader:
        """Return the reader of a table's embeddings, which are computed now if they are stored."""
        embedded = loaded_model.embed_on_demand(table)
        if self.stores:
            embedded = loaded_model.store_vectors(table, self.store, self.ranks, self.progress)
        return GuideReader(table, embedded, loaded_model.encoder.dimension, self.device)


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


def _choose_probes(table: ExampleTable) -> NDArray[np.int64]:
    """Return the sequences of the distinct anchors of PROBED_ROWS rows, in the order of rows."""
    anchors = table.entries[table.starts[: min(PROBED_ROWS, len(table.starts) - 1)]]
    first_of_text = np.unique(table.text_ids[anchors], return_index=True)[1]
    return np.asarray(anchors[np.sort(first_of_text)], np.int64)


def _require_one_space(
    name: str, vectors: NDArray[np.float32], first: str, first_vectors: NDArray[np.float32]
) -> None:
    """Refuse a model of an ensemble of vectors that gives texts other vectors than the first model.

    It shares the first one's space if the first one's vectors find its vectors of the same texts, among those
    of PROBED_ROWS rows of the data, more often than not.

    Raises:
        DataError: if it does not.
    """
    if vectors is first_vectors:
        return
    # One text finds itself in any space.
    is_comparable = vectors.shape[1] == first_vectors.shape[1]
    if is_comparable and (len(vectors) < 2 or _find_each(vectors, first_vectors)):
        return
    raise DataError(
        f"{name} and {first} have vectors of different spaces, so a mean of their vectors is of no use; take "
        "a loss of scores, such as similarity_distillation"
    )


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
