"""Keeping the changes that matter most to a row's softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, Stats

from emberge_merge.methods.ranking import Ranking

if TYPE_CHECKING:
    from torch import Tensor

    from emberge_merge.methods.cut import Cut

_QUARTILES = (0.25, 0.5, 0.75)
_LEAST = 1e-8  # added to probabilities, so that none is zero


@dataclass(frozen=True, kw_only=True)
class SelectImportant(Ranking):
    """Keep the changes whose importance is an outlier, and undo the others (Arcee Fusion, Arcee AI, 2024).

    Importance is |change| · KL(softmax(W row) ‖ softmax(W₀ row)), and an element stays when it reaches
    median + 1.5 · (third quartile - first quartile) of its tensor. The quartiles are those of all elements,
    where mergekit samples a million of a larger tensor.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{select_important: {precise: false}}, task_arithmetic]
    """

    precise: bool = True
    """Sum divergences in float64: in float32, as in mergekit, those of small changes are rounding errors."""

    base_policy = "required"
    weight_role = "unused"

    @property
    def limits(self) -> int:
        return len(_QUARTILES)

    @property
    def measures_are_exact(self) -> bool:
        return False  # so that the softmaxes of few rows are in memory at once

    def samples_rows(self, number: int) -> bool:
        return False

    def measure(self, block: Block, stats: Stats) -> Measures:
        if stats:
            return super().measure(_score_block(block, stats[-1]["divergence"]), stats)
        divergence = row_divergence(block, precise=self.precise)
        measures = super().measure(_score_block(block, divergence, start=block.start), stats)
        return {**measures, "divergence": [divergence]}

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        # The value at place p of ascending order is the (total - p)-th largest.
        return [total - int(q * (total - 1)) for _ in block.models for q in _QUARTILES]

    def conclude(self, block: Block, stats: Stats) -> Measures:
        import torch

        measures = dict(super().conclude(block, stats))
        divergence = stats[0]["divergence"]
        # One number a row, measured once: the softmaxes are not needed again.
        measures["divergence"] = (
            torch.cat(divergence, dim=1) if isinstance(divergence, list) else divergence
        )
        return measures

    def apply(self, block: Block, stats: Stats) -> Block:
        scores = _score_block(block, stats[-1]["divergence"]).deltas
        limits = self._compute_thresholds(stats[-1]["cuts"], scores)
        return block.with_deltas(scores.ge_(limits).mul_(block.deltas))

    @staticmethod
    def _compute_thresholds(cuts: Sequence[Cut], template: Tensor) -> Tensor:
        quartiles = template.new_tensor([cut.value(template.dtype) for cut in cuts]).view(-1, 3)
        first_quartile, median, third_quartile = quartiles.unbind(1)
        return (median + 1.5 * (third_quartile - first_quartile)).view(
            -1, *[1] * (template.dim() - 1)
        )


def _score_block(block: Block, divergence: Tensor, start: int = 0) -> Block:
    """Return the block with importances for changes; `divergence` is that of rows from element `start` on."""
    width = math.prod(block.shape[-1:])
    first_row = (block.start - start) // width
    scores = block.copy_deltas().abs_()
    rows = scores.view(len(scores), -1, width)
    rows.mul_(divergence[:, first_row : first_row + rows.shape[1], None])
    return block.with_deltas(scores)


def row_divergence(block: Block, *, precise: bool) -> Tensor:
    """Compute KL(softmax(W) ‖ softmax(W₀)) over the last axis, [models, rows], in the block's dtype."""
    import torch
    from emberge.numerics import pooled_like

    assert block.base is not None
    dtype = torch.float64 if precise else block.tensors.dtype
    width = math.prod(block.shape[-1:])

    def probabilities(values: Tensor) -> Tensor:
        rows = values.reshape(-1, width)
        into = pooled_like(rows.new_empty(0, dtype=dtype), rows.shape)
        return torch.softmax(into.copy_(rows), -1, out=into).add_(_LEAST)

    base = probabilities(block.base)
    rows = [
        _take_logarithms(torch.div(model_rows, base, out=pooled_like(base)))
        .mul_(model_rows)
        .sum(-1)
        for model_rows in map(probabilities, block.tensors.unbind(0))
    ]
    return torch.stack(rows).to(block.tensors.dtype)


def _take_logarithms(values: Tensor) -> Tensor:
    """Compute logarithms in place; on a CPU by NumPy, which is three times faster there."""
    import numpy as np

    if values.device.type != "cpu":
        return values.log_()
    numbers = values.numpy()
    np.log(numbers, out=numbers)
    return values
