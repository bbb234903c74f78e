"""Arithmetic of scores that several losses share: warnings of scales, a teacher's scores, and order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from emberge import Embeddings, Loss, Positive
from emberge.numerics import lowest_score

if TYPE_CHECKING:
    from torch import Tensor


def temperature_warnings(temperature: float, *, most: float = 1.0) -> list[str]:
    """Return a warning for a temperature above `most`.

    Cosines lie between -1 and 1, so scores divided by a temperature T differ by at most 2 / T.
    """
    if temperature <= most:
        return []
    return [
        f"temperature {temperature:g}: cosines divided by it differ by {2 / temperature:.2g} at most, so "
        f"that nothing is learned; from 0.01 to 0.1 is usual, and a scale of {temperature:g} is the "
        f"temperature {1 / temperature:.3g}"
    ]


def scale_warnings(scale: float) -> list[str]:
    """Return a warning for a scale below 1, which looks like a temperature."""
    if scale >= 1:
        return []
    return [
        f"scale {scale:g}: cosines times it differ by {2 * scale:.2g} at most, so that nothing is learned; "
        f"20 is usual, and a temperature of {scale:g} is the scale {1 / scale:.3g}"
    ]


def teacher_scores(e: Embeddings, loss: str) -> tuple[Tensor, Tensor]:
    """Return the teacher's scores of the candidates [b, p + n], 0 where missing, and their mask.

    Raises:
        ValueError: if all positives or all negatives lack scores.
    """
    if e.positive_score is None or (e.negative_score is None and e.negative.shape[1]):
        raise ValueError(f"{loss} needs a teacher's scores of positives and negatives")
    scores = e.scores
    is_scored = e.valid & ~scores.isnan()
    return scores.masked_fill(~is_scored, 0.0), is_scored


def student_scores(e: Embeddings, similarity: Literal["cosine", "dot"] | None) -> Tensor:
    """Return the similarity of every anchor and its candidates [b, p + n], by default the model's own."""
    if similarity is not None:
        e = replace(e, similarity=replace(e.similarity, unit=similarity == "cosine"))
    return e.closeness


@dataclass(frozen=True, kw_only=True)
class OrderLoss(Loss):
    """Loss on the order of a batch's pairs by a value, which a subclass computes in `values`.

    The pairs are every anchor with each of its scored positives and negatives. By default each rank compares
    only its own rows.
    """

    scale: Positive = 20.0
    """One over the temperature."""
    unscored: bool = False
    """Count positives without a score as 1 and negatives without a score as 0."""
    cross_rank: bool = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.unscored else frozenset({"positive_score"})

    def check_scores(self, lowest: float, highest: float) -> Sequence[str]:
        if lowest < highest or self.unscored:
            return ()
        return (
            f"all scores are {highest:g}, and it learns from their order alone; give scores that differ, or "
            "choose another loss under by_dataset",
        )

    def warnings(self) -> list[str]:
        return scale_warnings(self.scale)

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        score = self._fill_scores(embeddings)
        return ordering_loss(self.scale * self.values(embeddings), score, embeddings.valid)

    def values(self, embeddings: Embeddings) -> Tensor:
        """Return the closeness of every anchor and each of its texts [b, p + n]."""
        raise NotImplementedError

    def _fill_scores(self, e: Embeddings) -> Tensor:
        """Return scores of the candidates [b, p + n]; with `unscored`, missing scores are 1 or 0."""
        import torch

        if not self.unscored:
            if e.positive_score is None and e.negative_score is None:
                name = type(self).__name__
                raise ValueError(f"{name} needs scores; set unscored: true for data without them")
            return e.scores
        slots = e.positive.shape[1]
        is_positive = torch.arange(e.valid.shape[1], device=e.valid.device) < slots
        return torch.where(e.scores.isnan(), is_positive.to(e.scores.dtype), e.scores)


def ordering_loss(value: Tensor, score: Tensor, valid: Tensor) -> Tensor:
    """Return log(1 + sum over pairs with score_i > score_j of e^(value_j - value_i)), tensors of one shape.

    The values are sorted by falling score, which makes the sum over i a running log-sum-exp. Values that are
    not `valid` or have no score (NaN) are ignored. For n values it takes time n log n and memory n.
    """
    import torch

    value, score = value.flatten(), score.flatten()
    is_scored = valid.flatten() & ~score.isnan()
    score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=True)
    value, is_scored = value[order], is_scored[order]
    floor = lowest_score(value)
    running_sums = torch.logcumsumexp(torch.where(is_scored, -value, floor), dim=0)
    running_sums = torch.cat([running_sums.new_full((1,), floor), running_sums])
    higher_counts = torch.searchsorted(-score, -score)  # how many scores are strictly above
    terms = torch.where(is_scored, value + running_sums[higher_counts], floor)
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)
