"""Texts of a planned batch, and the embeddings that its losses get."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from emberge.contracts import COLUMNS, COSINE, Embeddings, Similarity, TokenisedText
from emberge.encoding import BatchEmbeddings, to_device
from emberge.ranks import ALONE, Ranks, rows_of, shard_rows
from emberge.seeds import random_bits, stable_seed
from emberge.training.objective import Objective
from emberge.training.plan.batch_plan import PlannedBatch, PlannedPart
from emberge.training.tables.example_table import ExampleTable


@dataclass(frozen=True)
class TextSampling:
    """Number of texts drawn from a row, of which rows with fewer texts repeat theirs."""

    positives: int = 1
    negatives: int = 7
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _DrawnPart:
    """Entries [b, 1 + p + n] of a table (-1 for padding), with `slots` columns of positives.

    `embedded` [1 + p + n] (bool) marks columns whose texts go through the trained model.
    """

    part: PlannedPart
    table: ExampleTable
    entries: NDArray[np.int64]
    slots: int
    embedded: NDArray[np.bool_]

    @functools.cached_property
    def sequences(self) -> NDArray[np.int64]:
        return np.where(self.entries >= 0, self.table.entries[self.entries], -1)


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """Texts that this rank encodes, and for each part, the positions of its texts among those of all ranks.

    `counts` has the number of texts of each rank.
    """

    texts: tuple[TokenisedText, ...]
    parts: tuple[_DrawnPart, ...]
    places: tuple[NDArray[np.int64], ...]
    counts: tuple[int, ...]
    ranks: Ranks = ALONE

    def objective(
        self,
        loss: Objective,
        device: torch.device,
        similarity: Similarity = COSINE,
        progress: float = 1.0,
    ) -> Callable[[BatchEmbeddings], Tensor]:
        """Return the function from the embeddings of the rank's texts to its share of the batch's loss.

        The embeddings are compared by `similarity`; `progress` is the share of steps that are done.

        Summed over ranks, the shares are the parts' losses, weighted by their rows. Every rank computes a
        loss that gathers over all rows; the rank contributes its share of the value, and the whole gradient
        of its own rows. A loss that does not gather is computed over the rank's rows and weighted by their
        number.
        """

        def of(encoded: BatchEmbeddings) -> Tensor:
            names = [drawn.part.dataset for drawn in self.parts]
            masked_embeddings = encoded
            if self.ranks.size > 1:
                masked_embeddings = self._gather_embeddings(
                    encoded, any(loss.gathers(name) for name in names)
                )
            rows = sum(len(drawn.part.rows) for drawn in self.parts)
            total = encoded.embeddings.new_zeros(())
            for drawn, places in zip(self.parts, self.places, strict=True):
                embeddings = _build_embeddings(drawn, places, masked_embeddings, device, similarity)
                embeddings = replace(embeddings, progress=progress)
                total = total + self._part(loss, drawn, embeddings) * (len(drawn.part.rows) / rows)
            return total

        return of

    def _part(self, loss: Objective, drawn: _DrawnPart, whole: Embeddings) -> Tensor:
        name, size = drawn.part.dataset, len(drawn.part.rows)
        if self.ranks.size == 1:
            return loss(name, whole)
        total = loss.gathering(name, whole, self.ranks.size)
        own_rows = shard_rows(size, self.ranks.rank, self.ranks.size)
        if own_rows.start < own_rows.stop:
            share = (own_rows.stop - own_rows.start) / size
            total = total + share * loss.local(name, rows_of(whole, own_rows))
        return total

    def _gather_embeddings(self, encoded: BatchEmbeddings, needed: bool) -> BatchEmbeddings:
        """Return the embeddings of all ranks, with zeros in place of other ranks' if no loss reads these."""

        def of(own: Tensor) -> Tensor:
            if own.ndim > 2:
                own = pad(own, (0, 0, 0, self.ranks.largest(own.shape[1]) - own.shape[1]))
            if needed:
                return self.ranks.gathered(own, self.counts)
            before = sum(self.counts[: self.ranks.rank])
            after = sum(self.counts) - before - len(own)
            return pad(own, (0, 0) * (own.ndim - 1) + (before, after))

        return BatchEmbeddings(
            of(encoded.embeddings), {name: of(values) for name, values in encoded.layers.items()}
        )


def draw_batch(
    batch: PlannedBatch,
    tables: Mapping[str, ExampleTable],
    draw: TextSampling,
    *,
    unique: bool,
    embeds: Callable[[str], frozenset[str]] = lambda _: COLUMNS,
    ranks: Ranks = ALONE,
) -> DrawnBatch:
    """Draw each row's texts; with `unique`, each distinct text of a rank is encoded once.

    `embeds` returns the columns of a dataset whose texts are encoded: some of "anchor", "positive" and
    "negative". The drawn texts depend only on seed, epoch, dataset and row. Every rank draws all rows,
    because the number of a row's texts depends on the other rows of its batch.
    """
    parts = [
        _draw_part(part, tables[part.dataset], draw, batch.epoch, embeds(part.dataset))
        for part in batch.parts
    ]
    places = [np.zeros(drawn.entries.shape, np.int64) for drawn in parts]
    counts: list[int] = []
    texts: list[TokenisedText] = []
    for rank in range(ranks.size):
        texts_found = _find_texts(parts, places, unique, (rank, ranks.size), sum(counts))
        counts.append(len(texts_found))
        if rank == ranks.rank:
            texts = [drawn.table.sequences[sequence] for drawn, sequence in texts_found]
    return DrawnBatch(tuple(texts), tuple(parts), tuple(places), tuple(counts), ranks)


def _find_texts(
    parts: Sequence[_DrawnPart],
    places: Sequence[NDArray[np.int64]],
    unique: bool,
    rank: tuple[int, int],
    start: int,
) -> list[tuple[_DrawnPart, int]]:
    """Return a rank's texts in order, at least one; write their numbers, from `start` on, into `places`."""
    texts: list[tuple[_DrawnPart, int]] = []
    number_by_text: dict[tuple[str, int], int] = {}
    for drawn, numbered in zip(parts, places, strict=True):
        own_rows = shard_rows(len(numbered), *rank)
        numbered[own_rows] = start  # padding points at the first text, and is masked
        encoded = np.where(drawn.embedded, drawn.sequences[own_rows], -1)
        for index, sequence in np.ndenumerate(encoded):
            if sequence < 0:
                continue
            key = (drawn.part.dataset, int(sequence))
            if not unique or key not in number_by_text:
                number_by_text[key] = start + len(texts)
                texts.append((drawn, int(sequence)))
            numbered[own_rows][index] = number_by_text[key]
    return texts or [(parts[0], int(parts[0].sequences[0, 0]))]


def _draw_part(
    part: PlannedPart,
    table: ExampleTable,
    draw: TextSampling,
    epoch: int,
    embeds: frozenset[str],
) -> _DrawnPart:
    rows = part.rows
    slots = min(draw.positives, int(table.positives[rows].max()))
    negative_slots = min(draw.negatives, int(table.negatives[rows].max()))
    entries = np.full((len(rows), 1 + slots + negative_slots), -1, np.int64)
    for index, row in enumerate(rows):
        start, count = int(table.starts[row]), int(table.positives[row])
        left = int(table.starts[row + 1]) - start - 1 - count
        entries[index, 0] = start
        key = (draw.seed, "draw", part.dataset, epoch, int(row))
        for kind, first, size, begin, want in (
            ("positive", start + 1, count, 1, slots),
            ("negative", start + 1 + count, left, 1 + slots, negative_slots),
        ):
            chosen_entries = first + _choose_numbers(size, want, (*key, kind))
            entries[index, begin : begin + len(chosen_entries)] = chosen_entries
    columns = np.array(["anchor", *["positive"] * slots, *["negative"] * negative_slots])
    return _DrawnPart(part, table, entries, slots, np.isin(columns, sorted(embeds)))


def _choose_numbers(size: int, want: int, key: Sequence[object]) -> NDArray[np.int64]:
    """Return `want` numbers below `size` without replacement; if `size` is less, numbers repeat."""
    if not size or not want:
        return np.zeros(0, np.int64)
    if size == want:
        return np.arange(size)
    repeats = math.ceil(want / size)
    bits = random_bits(size * repeats, stable_seed(*key))
    return np.asarray(np.argsort(bits, kind="stable")[:want] % size, np.int64)


def _build_embeddings(
    drawn: _DrawnPart,
    places: NDArray[np.int64],
    encoded: BatchEmbeddings,
    device: torch.device,
    similarity: Similarity,
) -> Embeddings:
    table, slots = drawn.table, drawn.slots
    scores = np.where(drawn.entries >= 0, table.scores[drawn.entries], np.nan)
    labels = np.asarray(table.labels[drawn.part.rows])
    index = to_device(torch.from_numpy(places), device)

    def on_device(array: NDArray[np.generic]) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)

    def seen(values: Tensor, layers: Mapping[float, Embeddings]) -> Embeddings:
        rows = values[index.flatten()].view(*index.shape, *values.shape[1:])
        if not drawn.embedded.all():
            is_embedded = on_device(drawn.embedded).view(-1, *[1] * (values.ndim - 1))
            rows = rows.where(is_embedded, torch.nan)
        if similarity.kind == "pair_score":  # a pair's score is its text's product with one
            rows = torch.cat([torch.ones_like(rows[:, :1]), rows[:, 1:]], dim=1)
        return Embeddings(
            anchor=rows[:, 0],
            positive=rows[:, 1 : 1 + slots],
            negative=rows[:, 1 + slots :],
            valid=on_device(drawn.entries[:, 1:] >= 0),
            text_id=on_device(table.text_ids[drawn.sequences]),
            positive_score=_build_score_tensor(scores[:, 1 : 1 + slots], device),
            negative_score=_build_score_tensor(scores[:, 1 + slots :], device),
            label=on_device(labels) if (labels >= 0).any() else None,
            in_batch=drawn.part.in_batch,
            layers=layers,
            similarity=similarity,
        )

    embeddings = seen(
        encoded.embeddings, {name: seen(values, {}) for name, values in encoded.layers.items()}
    )
    if table.guide is None:
        return embeddings
    guide_embeddings = table.guide(drawn.entries)
    guide = replace(
        embeddings,
        anchor=guide_embeddings[:, 0],
        positive=guide_embeddings[:, 1 : 1 + slots],
        negative=guide_embeddings[:, 1 + slots :],
        layers={},
        similarity=COSINE,  # a guide gives vectors
    )
    return replace(embeddings, guide=guide)


def _build_score_tensor(scores: NDArray[np.floating], device: torch.device) -> Tensor | None:
    if not scores.size or np.isnan(scores).all():
        return None
    values = np.ascontiguousarray(scores, dtype=np.float32)
    return to_device(torch.from_numpy(values), device)
