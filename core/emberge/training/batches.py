"""A planned batch becomes texts to encode, and their embeddings become what losses see."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts.backbone import TokenisedText
from emberge.contracts.loss import Embeddings
from emberge.seeds import random_bits, stable_seed
from emberge.training.encode import Encoded
from emberge.training.plan import PlannedBatch, PlannedPart
from emberge.training.table import ExampleTable

__all__ = ["Draw", "DrawnBatch", "draw_batch"]

# The losses of one part: its embeddings in, a scalar out.
PartLoss = Callable[[str, Embeddings], Tensor]


@dataclass(frozen=True)
class Draw:
    """How many texts of a row are drawn, and what to do where it has fewer."""

    positives: int = 1
    negatives: int = 7
    fill: Literal["repeat", "mask"] = "repeat"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _DrawnPart:
    """Entries [b, 1 + p + n] of a table (-1 for filling) and how many of the columns are positives."""

    part: PlannedPart
    table: ExampleTable
    entries: NDArray[np.int64]
    slots: int

    @property
    def sequences(self) -> NDArray[np.int64]:
        return np.where(self.entries >= 0, self.table.entries[self.entries], -1)


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """Texts to encode, and where each text of each part stands among them."""

    texts: tuple[TokenisedText, ...]
    parts: tuple[_DrawnPart, ...]
    places: tuple[NDArray[np.int64], ...]

    def objective(self, loss: PartLoss, device: torch.device) -> Callable[[Encoded], Tensor]:
        """The batch's loss given all embeddings: the parts' losses weighted by their share of rows."""
        shares = [len(p.part.rows) for p in self.parts]

        def of(encoded: Encoded) -> Tensor:
            total = encoded.embeddings.new_zeros(())
            for drawn, places, share in zip(self.parts, self.places, shares, strict=True):
                value = loss(drawn.part.dataset, _embeddings(drawn, places, encoded, device))
                total = total + value * (share / sum(shares))
            return total

        return of


def draw_batch(
    batch: PlannedBatch, tables: Mapping[str, ExampleTable], draw: Draw, *, unique: bool
) -> DrawnBatch:
    """Draw each row's texts; with `unique` equal texts of the batch are encoded once.

    Which texts depends on seed, epoch, dataset and row alone.
    """
    parts = [_draw_part(part, tables[part.dataset], draw, batch.epoch) for part in batch.parts]
    texts: list[TokenisedText] = []
    places: list[NDArray[np.int64]] = []
    known: dict[tuple[str, int], int] = {}
    for drawn in parts:
        place = np.zeros(drawn.entries.shape, np.int64)
        for at, sequence in np.ndenumerate(drawn.sequences):
            if sequence < 0:
                continue  # filling points at the first text, and is masked
            key = (drawn.part.dataset, int(sequence))
            if not unique or key not in known:
                known[key] = len(texts)
                texts.append(drawn.table.sequences[int(sequence)])
            place[at] = known[key]
        places.append(place)
    return DrawnBatch(tuple(texts), tuple(parts), tuple(places))


def _draw_part(part: PlannedPart, table: ExampleTable, draw: Draw, epoch: int) -> _DrawnPart:
    rows = part.rows
    slots = min(draw.positives, int(table.positives[rows].max()))
    hard = min(draw.negatives, int(table.negatives[rows].max()))
    entries = np.full((len(rows), 1 + slots + hard), -1, np.int64)
    for place, row in enumerate(rows):
        start, count = int(table.starts[row]), int(table.positives[row])
        left = int(table.starts[row + 1]) - start - 1 - count
        entries[place, 0] = start
        key = (draw.seed, "draw", part.dataset, epoch, int(row))
        for kind, first, size, begin, want in (
            ("positive", start + 1, count, 1, slots),
            ("negative", start + 1 + count, left, 1 + slots, hard),
        ):
            chosen = first + _choose(size, want, draw.fill, (*key, kind))
            entries[place, begin : begin + len(chosen)] = chosen
    return _DrawnPart(part, table, entries, slots)


def _choose(size: int, want: int, fill: str, key: Sequence[object]) -> NDArray[np.int64]:
    """`want` of `size` things without replacement; of fewer, the list repeated often enough (or all)."""
    if not size or not want:
        return np.zeros(0, np.int64)
    if size == want or (size < want and fill == "mask"):
        return np.arange(size)
    repeats = math.ceil(want / size)
    bits = random_bits(size * repeats, stable_seed(*key))
    return np.asarray(np.argsort(bits, kind="stable")[:want] % size, np.int64)


def _embeddings(
    drawn: _DrawnPart, places: NDArray[np.int64], encoded: Encoded, device: torch.device
) -> Embeddings:
    table, slots = drawn.table, drawn.slots
    scores = np.where(drawn.entries >= 0, table.scores[drawn.entries], np.nan)
    labels = np.asarray(table.labels[drawn.part.rows])
    index = torch.from_numpy(places).to(device)

    def on_device(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def seen(values: Tensor, layers: Mapping[float, Embeddings]) -> Embeddings:
        rows = values[index.flatten()].view(*index.shape, -1)
        return Embeddings(
            anchor=rows[:, 0],
            positive=rows[:, 1 : 1 + slots],
            negative=rows[:, 1 + slots :],
            valid=on_device(drawn.entries[:, 1:] >= 0),
            text_id=on_device(table.text_ids[drawn.sequences]),
            positive_score=_given(scores[:, 1 : 1 + slots], device),
            negative_score=_given(scores[:, 1 + slots :], device),
            label=on_device(labels) if (labels >= 0).any() else None,
            in_batch=drawn.part.in_batch,
            layers=layers,
        )

    return seen(
        encoded.embeddings, {name: seen(values, {}) for name, values in encoded.layers.items()}
    )


def _given(scores: NDArray[np.floating], device: torch.device) -> Tensor | None:
    if not scores.size or np.isnan(scores).all():
        return None
    return torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32)).to(device)
