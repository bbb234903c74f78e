"""Rows of several ranks joined to one batch, and selection of rows from a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from emberge.contracts import Embeddings
from emberge.numerics import join_rows


def gathered(parts: Sequence[Embeddings]) -> Embeddings:
    """Return the rows of every part, one after another, as the batch that a loss gets.

    Parts whose rows have fewer positives or negatives are padded, and `valid` masks the padding. If only some
    parts have scores or labels, the others get NaN and -1. Equal texts and labels have equal numbers on all
    ranks, because all ranks read one table.
    """
    positive_width = max(part.positive.shape[1] for part in parts)
    negative_width = max(part.negative.shape[1] for part in parts)
    fields: dict[str, Any] = {
        "anchor": join_rows([part.anchor for part in parts]),
        "positive": join_rows([part.positive for part in parts]),
        "negative": join_rows([part.negative for part in parts]),
        "valid": torch.cat(
            [
                _widen_sides(part, part.valid, (positive_width, negative_width), False)
                for part in parts
            ]
        ),
        "text_id": torch.cat(
            [
                torch.cat(
                    [
                        p.text_id[:, :1],
                        _widen_sides(p, p.text_id[:, 1:], (positive_width, negative_width), -1),
                    ],
                    dim=1,
                )
                for p in parts
            ]
        ),
        "positive_score": _join_scores(
            [part.positive_score for part in parts], parts, positive_width
        ),
        "negative_score": _join_scores(
            [part.negative_score for part in parts], parts, negative_width
        ),
        "label": _join_labels(parts),
        "layers": {
            layer: gathered([part.layers[layer] for part in parts]) for layer in parts[0].layers
        },
    }
    guides = [part.guide for part in parts if part.guide is not None]
    fields["guide"] = gathered(guides) if len(guides) == len(parts) else None
    return dataclasses.replace(parts[0], **fields)


def rows_of(batch: Embeddings, rows: Any) -> Embeddings:
    """Return a batch of some rows (a slice, or indices in any order), with all columns."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    columns: dict[str, Any] = {n: v[rows] for n, v in fields.items() if isinstance(v, Tensor)}
    layers = {name: rows_of(inner, rows) for name, inner in batch.layers.items()}
    guide = None if batch.guide is None else rows_of(batch.guide, rows)
    return dataclasses.replace(batch, **columns, layers=layers, guide=guide)


def _widen(values: Tensor, width: int, filling: float) -> Tensor:
    """Return values [b, k, …] with columns added at the end up to `width`."""
    padding = (0, width - values.shape[1])
    return pad(values, (0, 0) * (values.ndim - 2) + padding, value=filling)


def _widen_sides(
    part: Embeddings, values: Tensor, widths: tuple[int, int], filling: float
) -> Tensor:
    """Return values [b, p + n] with columns added to both sides: the positives' and the negatives'."""
    positive_width = part.positive.shape[1]
    sides = zip((values[:, :positive_width], values[:, positive_width:]), widths, strict=True)
    return torch.cat([_widen(side, width, filling) for side, width in sides], dim=1)


def _join_scores(
    given: Sequence[Tensor | None], parts: Sequence[Embeddings], width: int
) -> Tensor | None:
    if all(score is None for score in given):
        return None
    missing_scores = [part.anchor.new_full((len(part.anchor), width), torch.nan) for part in parts]
    return torch.cat(
        [
            empty if score is None else _widen(score, width, torch.nan)
            for score, empty in zip(given, missing_scores, strict=True)
        ]
    )


def _join_labels(parts: Sequence[Embeddings]) -> Tensor | None:
    if all(part.label is None for part in parts):
        return None
    missing_labels = [part.text_id.new_full((len(part.anchor),), -1) for part in parts]
    return torch.cat(
        [
            e if part.label is None else part.label
            for part, e in zip(parts, missing_labels, strict=True)
        ]
    )
