"""Columns of equal length with labels, as sentence-transformers' losses read a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import DataError, Embeddings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Labelled:
    """Columns of embeddings, each [k, d], and their label: one number a row, one a text, or a vector."""

    columns: tuple[Tensor, ...]
    label: Tensor | None = None

    @property
    def share(self) -> int:
        """Factor in the mean over a batch's parts: its number of rows."""
        return len(self.columns[0])


def _slots(e: Embeddings) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each place of a positive with its rows: (row numbers, positives [k, d])."""
    for slot in range(e.positive.shape[1]):
        rows = e.valid[:, slot].nonzero()[:, 0]
        if len(rows):
            yield rows, e.positive[rows, slot]


def _hard(e: Embeddings) -> Tensor:
    """Return which negatives there are, bool [b, n]."""
    return e.valid[:, e.positive.shape[1] :]


def columns(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor, positive and negatives of the whole batch; row by row where others are no negatives."""
    there = _hard(e)
    for rows, positive in _slots(e):
        if not e.in_batch:
            for place, row in enumerate(rows):
                own = e.negative[row][there[row]]
                columns = (e.anchor[row], positive[place], *own)
                yield Labelled(tuple(column[None] for column in columns))
            continue
        full = there[rows].all(0)
        if (there[rows].any(0) & ~full).any():
            raise DataError(
                "sentence-transformers' columns have no gaps, and rows of one batch have different numbers "
                "of negatives; set fill: repeat, and see that every row has a negative or none has"
            )
        yield Labelled((e.anchor[rows], positive, *e.negative[rows][:, full].unbind(1)))


def two_columns(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive, without negatives."""
    for rows, positive in _slots(e):
        yield Labelled((e.anchor[rows], positive))


def triplets(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its positives and each of its negatives."""
    slots = e.positive.shape[1]
    both = e.valid[:, :slots, None] & e.valid[:, None, slots:]
    row, place, other = both.nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.positive[row, place], e.negative[row, other]))


def scores(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its scored texts, and the score."""
    row, place = (e.valid & ~e.scores.isnan()).nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.candidates[row, place]), e.scores[row, place])


def truths(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each text: 1 for scores of one half or more and unscored positives, else 0."""
    row, place = e.valid.nonzero().unbind(1)
    if len(row):
        score = e.scores[row, place]
        truth = ((score >= 0.5) | (score.isnan() & (place < e.positive.shape[1]))).to(score.dtype)
        yield Labelled((e.anchor[row], e.candidates[row, place]), truth)


def teacher(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor, positive and negatives with a teacher's scores, rows with equally many together."""
    import torch

    slots = e.positive.shape[1]
    scored = e.valid & ~e.scores.isnan()
    for slot in range(slots):
        rows = scored[:, slot].nonzero()[:, 0]
        there = scored[rows][:, slots:]
        for pattern in torch.unique(there, dim=0):
            own = rows[(there == pattern).all(1)]
            if pattern.any():
                texts = (e.positive[own, slot], *e.negative[own][:, pattern].unbind(1))
                label = e.scores[own][:, slots:][:, pattern]
                yield Labelled((e.anchor[own], *texts), _beside(e.scores[own, slot], label))


def classes(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchors and positives in one column, with their row's label."""
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    import torch

    slots = e.positive.shape[1]
    known = (e.label >= 0)[:, None]
    there = torch.cat([known, known & e.valid[:, :slots]], dim=1)
    texts = torch.cat([e.anchor[:, None], e.positive], dim=1)
    if there.any():
        label = e.label[:, None].expand_as(there)
        yield Labelled((texts[there],), label[there])


def pair_classes(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive with the row's label."""
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    for rows, positive in _slots(e):
        known = e.label[rows] >= 0
        if known.any():
            yield Labelled((e.anchor[rows][known], positive[known]), e.label[rows][known])


def guided(e: Embeddings) -> Iterator[Labelled]:
    """Yield all texts in one column, with their embeddings by the guide."""
    import torch

    if e.guide is None:
        raise DataError("a loss that learns a guide's embeddings needs the guide")
    there = torch.cat([e.valid.new_ones(len(e.valid), 1), e.valid], dim=1)
    own = torch.cat([e.anchor[:, None], e.candidates], dim=1)
    seen = torch.cat([e.guide.anchor[:, None], e.guide.candidates], dim=1)
    yield Labelled((own[there],), seen[there].detach())


def _beside(first: Tensor, others: Tensor) -> Tensor:
    import torch

    return torch.cat([first[:, None], others], dim=1)


HOW: Mapping[str, Callable[[Embeddings], Iterator[Labelled]]] = {
    "columns": columns,
    "two_columns": two_columns,
    "triplets": triplets,
    "scores": scores,
    "truths": truths,
    "teacher": teacher,
    "classes": classes,
    "pair_classes": pair_classes,
    "guide": guided,
}
