"""AnglE: a loss that gives pairs with a higher score a smaller angle between complex vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, unit_vectors

from emberge_train.losses.score_arithmetic import OrderLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AnglE(OrderLoss):
    """Order of pairs by angles of complex vectors, as their scores are (Li and Li, 2023, arXiv:2309.12871).

    The first half of an embedding holds the real parts, the second half the imaginary parts of complex
    numbers. For unit vectors z and w, the closeness of a text to its anchor is |sum of the real and imaginary
    parts of z / w|, which keeps a gradient where the cosine has almost none. The loss has the form of
    `cosent`: log(1 + sum over pairs of pairs with y_i > y_j of e^(scale · (closeness_j - closeness_i))), over
    every anchor with each of its scored positives and negatives. `scale` is one over the temperature. The
    paper's objective is the sum of this loss, `cosent` and `infonce`. With `unscored` a positive without a
    score counts as 1 and a negative without a score as 0. By default each rank compares only its own rows.

    Example:
        trained:
          train:
            model: ./base
            data: ./scored.jsonl
            loss: [{angle: {scale: 20}}, cosent]
            sampler: batch_shuffle
    """

    def values(self, embeddings: Embeddings) -> Tensor:
        import torch

        anchor = unit_vectors(embeddings.anchor)
        # For w of length one, Re + Im of z / w is <z, w> + <z turned by a right angle, w>.
        towards = anchor + _turn_halves(anchor)
        return torch.einsum("id,icd->ic", towards, unit_vectors(embeddings.candidates)).abs()


def _turn_halves(vectors: Tensor) -> Tensor:
    """Return the vector (b, -a) for halves (a, b); a vector of odd length is padded by a zero first."""
    import torch
    from torch.nn.functional import pad

    width = vectors.shape[-1]
    real, imaginary = pad(vectors, (0, width % 2)).chunk(2, dim=-1)
    return torch.cat([imaginary, -real], dim=-1)[..., :width]
