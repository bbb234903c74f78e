"""Losses: pure functions of embeddings, or of hidden states for token losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Embeddings", "Loss", "TokenLoss"]


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """One global batch of one dataset, gathered from every rank when the loss asks for it.

    anchor [b, d], positive [b, p, d], negative [b, n, d]; valid [b, p + n] (bool) masks the filling where
    rows have fewer; positive_score [b, p] and negative_score [b, n] or None; label [b] (integers) or None;
    text_id [b, 1 + p + n] is equal for equal texts. `layers` holds embeddings of the intermediate layers
    asked for, `guide` a guide model's. `in_batch` says whether other rows' texts are negatives here.
    Embeddings come as the encoder gives them: a loss normalises.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    valid: Tensor
    text_id: Tensor
    positive_score: Tensor | None = None
    negative_score: Tensor | None = None
    label: Tensor | None = None
    in_batch: bool = True
    layers: Mapping[float, Embeddings] = field(default_factory=dict)
    guide: Embeddings | None = None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A function of one batch's embeddings. Fields are its YAML options.

    `weight` is its factor in a sum of losses; `cross_rank` gathers embeddings over ranks (retrieval) or
    stays local (similarity); `layers` are intermediate layers it wants, fraction f being hidden state
    floor(f · (L + 1)) with the embeddings at 0.
    """

    weight: float = 1.0
    cross_rank: bool = True
    layers: tuple[float, ...] = ()

    @property
    def whole_batch(self) -> bool:
        """False for a mean over examples that may be accumulated per micro-batch."""
        return True

    @property
    def needs(self) -> frozenset[str]:
        """What it reads beside anchor and positive; the runner refuses rows without it, before training.

        Of "negative", "positive_score", "label", "guide", and "contrast": negatives of its own where other
        rows' texts are none.
        """
        return frozenset()

    def parameters(self) -> Mapping[str, Tensor]:
        """Learned values (a temperature); handed back at the call."""
        return {}

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        """The loss of this batch, a scalar that keeps the graph."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """A mean over scored token positions (MLM, MNTP), never holding all logits at once."""

    weight: float = 1.0

    def corrupt(self, tokens: Any, seed: int) -> tuple[Any, Tensor]:
        """(corrupted tokens, labels), labels being -100 where nothing is scored."""
        raise NotImplementedError

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss of final hidden states [b, t, d] given the language head."""
        raise NotImplementedError
