"""InfoNCE: the positive against its hard negatives and, in retrieval, against the other rows' texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Literal

from emberge import AnyNumber, Embeddings, Guide, Loss, Positive, Requires
from emberge.numerics import lowest_score

from emberge_train.losses.contrast import Rules, TableSide, log_sums, sides
from emberge_train.losses.flat_scores import temperature_warnings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class InfoNCE(Loss):
    """Contrast of each anchor's positives and negatives, on cosines divided by `temperature`.

    For anchor i and positive slot c: -s(i, p_ic) + log(e^s(i, p_ic) + sum over negatives e^s), averaged. The
    negatives are the row's own hard negatives, and where the batch allows it (`in_batch`: retrieval by
    default, see the train step's `negatives`) the positives and hard negatives of every other row
    (van den Oord et al., 2018, arXiv:1807.03748; BOOM, arXiv:2602.05787, equation 10). A row's own other
    positives are never its negatives (CoDiEmb, arXiv:2508.11442, equation 2).

    `positives_in_denominator` takes all positives of other rows or only those of the same slot;
    `own_negatives_only` leaves other rows' hard negatives out, as Nomic Embed v2 prints it (arXiv:2502.07972,
    eq. 3), where its authors' code takes those of all rows, the default here; `slot_reduction` averages or
    sums over a row's positives. `symmetric` adds the way back, from positives to anchors, and halves the sum.
    `contrast_anchors` takes other rows' anchors as negatives too, `contrast_positives` what other rows'
    positives are to the row's positive (Li et al., 2023, arXiv:2308.03281). All four need other rows.

    `mask_equal_text` leaves out candidates whose text equals one of the row's positives or its anchor,
    `mask_equal_label` those of rows with the anchor's label. A `guide` model leaves out those that it holds
    for closer to the anchor than the least close positive, less `guide_margin` (an absolute similarity, or a
    share of the positive's by `guide_margin_kind: relative`), and equal texts with them (GISTEmbed,
    Solatorio, 2024, arXiv:2402.16829, which contrasts anchors and positives too).

    `learn_temperature` trains the temperature from its given value on, down to `lowest_temperature` (Radford
    et al., 2021, arXiv:2103.00020). Tables of scores are made in blocks: memory grows with the embeddings.

    Example:
        trained:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: {infonce: {temperature: 0.05}}
            sampler: batch_shuffle
    """

    temperature: Positive = 0.02
    """Divisor of the cosines."""
    positives_in_denominator: Literal["all", "same_slot"] = "all"
    own_negatives_only: bool = False
    slot_reduction: Literal["mean", "sum"] = "mean"
    symmetric: bool = False
    contrast_anchors: bool = False
    contrast_positives: bool = False
    mask_equal_text: bool = False
    mask_equal_label: bool = False
    guide: Guide | None = None
    guide_margin: Annotated[AnyNumber, Requires("guide")] = 0.0
    guide_margin_kind: Annotated[Literal["absolute", "relative"], Requires("guide")] = "absolute"
    learn_temperature: bool = False
    lowest_temperature: Annotated[Positive, Requires("learn_temperature")] = 0.01

    def __post_init__(self) -> None:
        for name in ("temperature", "lowest_temperature"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")
        if self.learn_temperature and self.temperature < self.lowest_temperature:
            raise ValueError(
                f"temperature starts at {self.temperature:g}, below lowest_temperature "
                f"{self.lowest_temperature:g}"
            )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"contrast", "label"} if self.mask_equal_label else {"contrast"})

    @property
    def guided_by(self) -> Guide | None:
        return self.guide

    def warnings(self) -> list[str]:
        return temperature_warnings(self.temperature)

    def parameters(self) -> Mapping[str, Tensor]:
        import torch

        if not self.learn_temperature:
            return {}
        return {"log_scale": torch.tensor(-math.log(self.temperature))}

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch

        rows, slots = embeddings.positive.shape[:2]
        scale = self._scale(parameters)
        anchors, positives, negatives = sides(embeddings)
        found = positives.vectors.view(rows, slots, -1)
        own = torch.einsum("id,icd->ic", anchors.vectors, found) * scale
        rules = self._rules(embeddings, anchors, positives)
        if not embeddings.in_batch:
            return self._reduce(_terms(own, _alone(anchors, negatives, rules, scale)), embeddings)
        against = self._against(anchors, positives, negatives, rules, scale)
        if self.contrast_positives:
            against = torch.logaddexp(
                against, log_sums(positives, positives, rules, scale).view(rows, slots)
            )
        terms = _terms(own, against)
        if self.symmetric:
            back = log_sums(positives, anchors, rules, scale).view(rows, slots)
            terms = (terms + _terms(own, back)) / 2
        return self._reduce(terms, embeddings)

    def _scale(self, parameters: Mapping[str, Tensor]) -> float | Tensor:
        if not self.learn_temperature:
            return 1 / self.temperature
        log_scale = parameters["log_scale"]
        beyond = (log_scale + math.log(self.lowest_temperature)).clamp(min=0)
        # The bound takes no part in the gradient, so that a temperature may leave it again.
        return (log_scale - beyond.detach()).exp()

    def _against(
        self,
        anchors: TableSide,
        positives: TableSide,
        negatives: TableSide,
        rules: Rules,
        scale: float | Tensor,
    ) -> Tensor:
        """Return log-sums [b, p or 1] over the negatives of each anchor."""
        import torch

        slots = len(positives.row) // len(anchors.row)
        shared = [anchors] if self.contrast_anchors else []
        if not self.own_negatives_only:
            shared.append(negatives)
        if self.positives_in_denominator == "all":
            parts = [
                log_sums(anchors, reduce(TableSide.__add__, [positives, *shared]), rules, scale)
            ]
        else:
            parts = [
                log_sums(anchors, positives.part(slot, slots), rules, scale)
                for slot in range(slots)
            ]
        against = torch.stack(parts, dim=1)
        if self.positives_in_denominator == "same_slot" and shared:
            rest = log_sums(anchors, reduce(TableSide.__add__, shared), rules, scale)
            against = torch.logaddexp(against, rest[:, None])
        if self.own_negatives_only:
            against = torch.logaddexp(against, _alone(anchors, negatives, rules, scale))
        return against

    def _rules(self, e: Embeddings, anchors: TableSide, positives: TableSide) -> Rules:
        import torch

        slots = e.positive.shape[1]
        valid = e.valid[:, :slots]
        texts = None
        if self.mask_equal_text or self.guide is not None:
            ids, anchor = e.text_id[:, 1 : 1 + slots], e.text_id[:, :1]
            texts = torch.cat([anchor, torch.where(valid, ids, anchor)], dim=1)
        threshold = None
        if self.guide is not None:
            if anchors.guide is None or positives.guide is None:
                raise ValueError("infonce has a guide, and these embeddings come without one's")
            seen = positives.guide.view(*valid.shape, -1)
            closeness = torch.einsum("ig,icg->ic", anchors.guide, seen)
            least = closeness.masked_fill(~valid, torch.inf).amin(1)
            share = least.abs() if self.guide_margin_kind == "relative" else 1.0
            threshold = least - self.guide_margin * share
        return Rules(texts, e.label if self.mask_equal_label else None, threshold)

    def _reduce(self, terms: Tensor, e: Embeddings) -> Tensor:
        valid = e.valid[:, : e.positive.shape[1]]
        terms = terms.masked_fill(~valid, 0.0)
        if self.slot_reduction == "sum":
            return terms.sum() / valid.any(1).sum().clamp(min=1)
        return terms.sum() / valid.sum().clamp(min=1)


def _terms(own: Tensor, against: Tensor) -> Tensor:
    """Return -own + log(e^own + e^against), exact where the second is far the smaller."""
    import torch

    gap = against - own
    return torch.logaddexp(torch.zeros_like(gap), gap)


def _alone(anchors: TableSide, negatives: TableSide, rules: Rules, scale: float | Tensor) -> Tensor:
    """Return log-sums [b, 1] over each row's own negatives alone."""
    import torch

    rows = len(anchors.row)
    if not len(negatives.row):
        return anchors.vectors.sum(1, keepdim=True) * 0 + lowest_score(anchors.vectors)
    own = negatives.vectors.view(rows, -1, negatives.vectors.shape[1])
    scores = torch.einsum("id,ikd->ik", anchors.vectors, own) * scale
    barred = ~negatives.valid.view(rows, -1)
    if rules.texts is not None:
        ids = negatives.text.view(rows, -1)
        barred |= (ids[:, :, None] == rules.texts[:, None]).any(-1)
    if rules.threshold is not None and anchors.guide is not None and negatives.guide is not None:
        seen = negatives.guide.view(*own.shape[:2], -1)
        barred |= torch.einsum("ig,ikg->ik", anchors.guide, seen) > rules.threshold[:, None]
    return torch.logsumexp(scores.masked_fill(barred, lowest_score(scores)), dim=1, keepdim=True)
