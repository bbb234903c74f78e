"""Any loss of sentence-transformers that can be computed from embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from emberge import AnyNumber, Count, Embeddings, Guide, Loss, NumberRange

from emberge_train.losses.stock import HOW, READS, REFUSED, Labelled, Reads, StandIn, build_loss

if TYPE_CHECKING:
    from torch import Tensor

_NEEDS: dict[str, frozenset[str]] = {
    "columns": frozenset({"contrast"}),
    "two_columns": frozenset(),
    "triplets": frozenset({"negative"}),
    "scores": frozenset({"positive_score"}),
    "truths": frozenset(),
    "teacher": frozenset({"negative", "positive_score", "negative_score"}),
    "classes": frozenset({"label"}),
    "pair_classes": frozenset({"label"}),
    "guide": frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersLoss(Loss):
    """Any loss of sentence-transformers, run by its own code (Reimers and Gurevych, 2019, arXiv:1908.10084).

    `{sentence_transformers: {loss: CoSENTLoss, options: {scale: 10}}}`; functions are given by name, as in
    `similarity_fct: dot_score`. The library's loss is given an object that returns embeddings in place of the
    model, so chunks, gradient cache and ranks work as for other losses. Losses that need the model itself are
    refused with the reason.

    `reads` states the columns that the loss reads; it is needed only for a loss that this release does not
    know. With `columns` they are anchor, positive and negatives, once for every positive of a row (row by row
    if other rows are not negatives); `two_columns` omits negatives; `triplets` are all triplets of a row.
    `scores` are a row's pairs with their scores; `truths` are the pairs with 1 for a score of at least one
    half or for a positive without a score. `teacher` are a row's texts with a teacher's scores. `classes` are
    anchors and positives, each with the row's label; `pair_classes` are pairs of both with the label. `guide`
    are texts with the `guide`'s embeddings. `dimension` is the size of embeddings, for a loss that learns a
    projection. Columns must have no gaps, so rows with fewer negatives than others need `fill: repeat`. By
    default each rank compares only its own rows, as in the library.

    Example:
        trained:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: {sentence_transformers: {loss: MultipleNegativesRankingLoss}}
            sampler: batch_shuffle
    """

    loss: str
    """The library's class, such as `CoSENTLoss`."""
    options: dict[str, Annotated[int, NumberRange()] | AnyNumber | bool | str] = field(
        default_factory=dict
    )
    """Arguments of that class, except the model and those that the runner sets."""
    reads: Reads | None = None
    guide: Guide | None = None
    dimension: Count | None = None
    cross_rank: bool = False

    def __post_init__(self) -> None:
        if self.loss in REFUSED:
            raise ValueError(f"loss: {self.loss} {REFUSED[self.loss]}")
        if self.loss not in READS and self.reads is None:
            from emberge import suggest

            hint = suggest(self.loss, list(READS)) or "; set `reads` to how it reads a batch"
            raise ValueError(f"loss: '{self.loss}' is no loss that is known{hint}")
        if self._reads == "guide" and self.guide is None:
            raise ValueError(f"loss: {self.loss} learns a guide's embeddings; name the guide")

    @property
    def _reads(self) -> str:
        return self.reads or READS[self.loss]

    @property
    def needs(self) -> frozenset[str]:
        return _NEEDS[self._reads]

    @property
    def guided_by(self) -> Guide | None:
        return self.guide

    def parameters(self) -> Mapping[str, Tensor]:
        return {name: value.detach() for name, value in self._build_loss().named_parameters()}

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch
        from torch.func import functional_call

        loss = self._build_loss()

        def of(batch: Labelled) -> Tensor:
            columns = [{"sentence_embedding": column} for column in batch.columns]
            value = functional_call(loss, dict(parameters), (columns, batch.label))
            if isinstance(value, Mapping):  # parts, of which training takes the sum
                value = torch.stack(list(value.values())).sum()
            return value  # type: ignore[no-any-return]

        parts = [(of(batch), batch.share) for batch in HOW[self._reads](embeddings)]
        rows = max(1, sum(share for _, share in parts))
        total = embeddings.anchor.sum() * 0
        for value, share in parts:
            total = total + value * (share / rows)
        return total

    def _build_loss(self) -> Any:
        import torch

        # What it learns always starts as the same numbers. A loss may wrap another one, and print at each
        # step that one should rather ask for that.
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.manual_seed(0)
            return build_loss(self.loss, dict(self.options), StandIn(self.dimension))
