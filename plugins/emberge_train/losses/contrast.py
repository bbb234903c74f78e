"""Denominators of contrastive losses: the negatives of each row, and their log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emberge import Embeddings, unit_vectors
from emberge.numerics import log_sum_products

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class TableSide:
    """Texts on one side of a table of scores, with their ids and groups, which decide what counts.

    vectors [m, d] of length one; row [m] is whose text it is, text [m] its id, valid [m] whether it is one;
    `own` [m] is whether it may be a negative of its own row; guide [m, g] its direction in a guide.
    """

    vectors: Tensor
    row: Tensor
    text: Tensor
    valid: Tensor
    own: Tensor
    guide: Tensor | None = None

    def __add__(self, other: TableSide) -> TableSide:
        import torch

        guide = None
        if self.guide is not None and other.guide is not None:
            guide = torch.cat([self.guide, other.guide])
        return TableSide(
            torch.cat([self.vectors, other.vectors]),
            torch.cat([self.row, other.row]),
            torch.cat([self.text, other.text]),
            torch.cat([self.valid, other.valid]),
            torch.cat([self.own, other.own]),
            guide,
        )

    def part(self, slot: int, slots: int) -> TableSide:
        """Return the texts of one slot of several."""
        here = slice(slot, None, slots)
        return TableSide(
            self.vectors[here],
            self.row[here],
            self.text[here],
            self.valid[here],
            self.own[here],
            None if self.guide is None else self.guide[here],
        )


def sides(e: Embeddings) -> tuple[TableSide, TableSide, TableSide]:
    """Return the anchors [b], positives [b · p] and negatives [b · n] of a batch."""
    import torch

    rows, slots = e.positive.shape[:2]
    device = e.anchor.device
    number = torch.arange(rows, device=device, dtype=torch.int32)

    def side(vectors: Tensor, text: Tensor, valid: Tensor, own: bool) -> TableSide:
        width = text.shape[1]
        row = number[:, None].expand(-1, width).flatten()
        may_be_own = torch.full_like(row, own, dtype=torch.bool)
        return TableSide(
            unit_vectors(vectors).flatten(0, 1), row, text.flatten(), valid.flatten(), may_be_own
        )

    there = e.valid.new_ones(rows, 1)
    found = [
        side(e.anchor[:, None], e.text_id[:, :1], there, False),
        side(e.positive, e.text_id[:, 1 : 1 + slots], e.valid[:, :slots], False),
        side(e.negative, e.text_id[:, 1 + slots :], e.valid[:, slots:], True),
    ]
    if e.guide is not None:
        seen = (e.guide.anchor[:, None], e.guide.positive, e.guide.negative)
        found = [
            replace(one, guide=unit_vectors(vectors.detach()).flatten(0, 1))
            for one, vectors in zip(found, seen, strict=True)
        ]
    anchors, positives, negatives = found
    return anchors, positives, negatives


@dataclass(frozen=True, eq=False)
class Rules:
    """Rules that bar a text from a row's denominator, beside filling and the row's own positives.

    texts [b, k] are ids of texts that are no negatives of the row, label [b] its label, threshold [b] the
    similarity to the guide from which on a text counts as one more positive. None switches a rule off.
    """

    texts: Tensor | None = None
    label: Tensor | None = None
    threshold: Tensor | None = None

    def barred(self, left: TableSide, right: TableSide, block: slice) -> Tensor:
        """Return the entries [block, m] of the table of left and right that do not count."""
        import torch

        rows = left.row[block]
        same_row = rows[:, None] == right.row[None]
        barred = (same_row & ~right.own) | ~right.valid
        if self.texts is not None:
            for ids in self.texts[rows].T:
                barred |= ids[:, None] == right.text[None]
        if self.label is not None:
            label = self.label[rows]
            alike = (label[:, None] == self.label[right.row][None]) & (label >= 0)[:, None]
            barred |= alike & ~same_row
        if self.threshold is not None and left.guide is not None and right.guide is not None:
            with torch.no_grad():
                barred |= left.guide[block] @ right.guide.T > self.threshold[rows][:, None]
        return barred


def log_sums(left: TableSide, right: TableSide, rules: Rules, scale: float | Tensor) -> Tensor:
    """Return log-sum-exp [k] of scale · cosine over the texts on the right that count for each on the left.

    A row for which none counts gets a very low number, with a gradient of zero.
    """
    scaled = left.vectors * scale
    return log_sum_products(scaled, right.vectors, lambda block: rules.barred(left, right, block))
