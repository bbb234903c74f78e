"""InfoNCE: the positive against its hard negatives and, in retrieval, against the other rows' texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Embeddings, Loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class InfoNCE(Loss):
    """Pull each anchor to its positives, push it from negatives, on cosines divided by `temperature`.

    For anchor i and positive slot c: -s(i, p_ic) + log(e^s(i, p_ic) + sum over negatives e^s), averaged. The
    negatives are the row's own hard negatives, and where the batch allows it (`in_batch`: retrieval by
    default, see the train step's `negatives`) the positives and hard negatives of every other row
    (van den Oord et al., 2018, arXiv:1807.03748; BOOM, arXiv:2602.05787, equation 10). A row's own other
    positives are never its negatives (CoDiEmb, arXiv:2508.11442, equation 2).

    `positives_in_denominator` takes all positives of other rows or only those of the same slot;
    `slot_reduction` averages or sums over a row's positives. `mask_equal_text` leaves out candidates whose
    text equals the positive's or the anchor's, `mask_equal_label` those of rows with the anchor's label.
    `symmetric` adds the way back, from positives to anchors, and halves the sum; it needs other rows.
    """

    temperature: float = 0.02
    positives_in_denominator: Literal["all", "same_slot"] = "all"
    slot_reduction: Literal["mean", "sum"] = "mean"
    mask_equal_text: bool = False
    mask_equal_label: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature:g}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"contrast", "label"} if self.mask_equal_label else {"contrast"})

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        from torch.nn.functional import normalize

        anchor = normalize(embeddings.anchor, dim=-1)
        positive = normalize(embeddings.positive, dim=-1)
        negative = normalize(embeddings.negative, dim=-1)
        terms = self._forth(embeddings, anchor, positive, negative)
        if self.symmetric and embeddings.in_batch:
            terms = (terms + self._back(embeddings, anchor, positive)) / 2
        return self._reduce(terms, embeddings.valid[:, : positive.shape[1]])

    def _forth(self, e: Embeddings, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Terms [b, p]: the positive of slot c against what stands in row i's denominator."""
        import torch

        own = torch.einsum("id,icd->ic", anchor, positive) / self.temperature
        others = self._hard(e, anchor, negative)
        if not e.in_batch:
            return _cross_entropy(own, others)
        scores = torch.einsum("id,jcd->ijc", anchor, positive) / self.temperature
        scores = scores.masked_fill(self._barred(e)[:, :, : positive.shape[1]], -torch.inf)
        if self.positives_in_denominator == "all":
            return _cross_entropy(own, torch.cat([scores.flatten(1), others], dim=1))
        slots = [
            _cross_entropy(own[:, c : c + 1], torch.cat([scores[:, :, c], others], dim=1))
            for c in range(positive.shape[1])
        ]
        return torch.cat(slots, dim=1)

    def _hard(self, e: Embeddings, anchor: Tensor, negative: Tensor) -> Tensor:
        """Scores of hard negatives [b, b·n], or [b, n] where each row has only its own."""
        import torch

        slots = e.positive.shape[1]
        if e.in_batch:
            scores = torch.einsum("id,jkd->ijk", anchor, negative) / self.temperature
            barred = self._barred(e, rows_own=True)[:, :, slots:]
            return scores.masked_fill(barred, -torch.inf).flatten(1)
        scores = torch.einsum("id,ikd->ik", anchor, negative) / self.temperature
        barred = ~e.valid[:, slots:]
        if self.mask_equal_text:
            barred = barred | _equal_text(e.text_id, e.text_id[:, 1 + slots :], slots)
        return scores.masked_fill(barred, -torch.inf)

    def _barred(self, e: Embeddings, rows_own: bool = False) -> Tensor:
        """Candidates [b, b, p + n] that are no negatives of row i: filling, its own positives, equal ones."""
        import torch

        rows = e.anchor.shape[0]
        same_row = torch.eye(rows, dtype=torch.bool, device=e.anchor.device)
        barred = (~e.valid)[None].expand(rows, -1, -1)
        if not rows_own:
            barred = barred | same_row[:, :, None]
        if self.mask_equal_text:
            candidates = e.text_id[:, 1:].reshape(1, -1).expand(rows, -1)
            equal = _equal_text(e.text_id, candidates, e.positive.shape[1])
            barred = barred | equal.view(rows, rows, -1)
        if self.mask_equal_label and e.label is not None:
            alike = (e.label[:, None] == e.label[None]) & ~same_row
            barred = barred | alike[:, :, None]
        return barred

    def _back(self, e: Embeddings, anchor: Tensor, positive: Tensor) -> Tensor:
        """Terms [b, p]: from the positive of slot c to its anchor among all anchors."""
        import torch

        scores = torch.einsum("icd,jd->icj", positive, anchor) / self.temperature
        own = torch.einsum("icd,id->ic", positive, anchor) / self.temperature
        rows = anchor.shape[0]
        barred = torch.eye(rows, dtype=torch.bool, device=anchor.device)
        if self.mask_equal_text:
            barred = barred | (e.text_id[:, None, 0] == e.text_id[None, :, 0])
        if self.mask_equal_label and e.label is not None:
            barred = barred | (e.label[:, None] == e.label[None])
        scores = scores.masked_fill(barred[:, None, :], -torch.inf)
        return torch.logaddexp(own, torch.logsumexp(_floored(scores), dim=-1)) - own

    def _reduce(self, terms: Tensor, valid: Tensor) -> Tensor:
        terms = terms.masked_fill(~valid, 0.0)
        if self.slot_reduction == "sum":
            return terms.sum() / terms.shape[0]
        return terms.sum() / valid.sum().clamp(min=1)


def _equal_text(text_id: Tensor, candidates: Tensor, slots: int) -> Tensor:
    """Whether candidates [b, m] have the text of row i's anchor or of one of its positives."""
    own = text_id[:, : 1 + slots]
    equal = candidates == own[:, :1]
    for slot in range(slots):
        equal = equal | (candidates == own[:, 1 + slot, None])
    return equal


def _cross_entropy(own: Tensor, others: Tensor) -> Tensor:
    """-own + log(e^own + sum e^others) for own [b, c] and others [b, m]."""
    import torch

    if not others.shape[1]:
        return own - own
    return torch.logaddexp(own, torch.logsumexp(_floored(others), dim=1, keepdim=True)) - own


def _floored(scores: Tensor) -> Tensor:
    # A row of nothing but -inf has a log-sum-exp without a gradient (0 · inf): a finite floor instead.
    import torch

    return scores.clamp(min=torch.finfo(scores.dtype).min / 4)
