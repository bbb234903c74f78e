"""Losses: pure functions of embeddings, or of hidden states for token losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from emberge.contracts.dataset import DatasetInfo, TaskKind
from emberge.contracts.option import AnyNumber, PerDataset, Share
from emberge.contracts.similarity import COSINE, EmbeddingKind, Similarity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """The global batch of one dataset, gathered from all ranks.

    anchor [b, *e], positive [b, p, *e] and negative [b, n, *e] are embeddings, which `similarity` compares: e
    is [d] for vectors, and [t, d] for a vector of each token, zero at padding. An encoder of pairs gives a
    score for each pair of a row's anchor and text: there, positive and negative are these scores, e is [1],
    and anchor is one.

    valid [b, p + n] (bool) is False at padding, where a row has fewer texts. positive_score [b, p] and
    negative_score [b, n] are None, or NaN for a text without a score. label [b] (integers, -1 for a row
    without a label) may be None. text_id [b, 1 + p + n] is equal for equal texts, and arbitrary where
    `valid` is False. `layers` are embeddings of the intermediate layers that the loss asks for. `guide` are
    another model's embeddings of the batch, without a gradient, if the training has a guide for the dataset.
    `in_batch` is True if other rows' texts are negatives. `progress` is the share of the training's steps
    that are done, 0 to 1.
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
    similarity: Similarity = COSINE
    progress: float = 1.0

    @property
    def candidates(self) -> Tensor:
        """Positives and then negatives of every row [b, p + n, *e], in the order of `valid`."""
        import torch

        return torch.cat([self.positive, self.negative], dim=1)

    @property
    def closeness(self) -> Tensor:
        """Similarities of every anchor with its positives and then its negatives [b, p + n]."""
        similarity = self.similarity
        return similarity.own_scores(
            similarity.prepared(self.anchor), similarity.prepared(self.candidates)
        )

    @property
    def scores(self) -> Tensor:
        """Scores of the candidates [b, p + n], NaN for candidates without a score."""
        import torch

        stored_scores = (self.positive_score, self.negative_score)
        sizes = (self.positive.shape[1], self.negative.shape[1])
        absent = self.anchor.detach().new_full((len(self.anchor), 1), torch.nan)
        parts = [
            absent.expand(-1, size) if score is None else score.to(absent.dtype)
            for score, size in zip(stored_scores, sizes, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def take(self, rows: slice | Tensor) -> Embeddings:
        """Return the batch of some rows (a slice, or indices in any order), with all columns."""
        import torch

        columns: dict[str, Any] = {
            f.name: value[rows]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), torch.Tensor)
        }
        layers = {layer: inner.take(rows) for layer, inner in self.layers.items()}
        guide = self.guide and self.guide.take(rows)
        return replace(self, **columns, layers=layers, guide=guide)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Function of one batch's embeddings. Fields are its YAML options.

    `weight` is the loss's factor in a sum of losses, applied by the runner. With `cross_rank`, embeddings are
    gathered over ranks (retrieval); without it, the loss stays local (similarity). `layers` are the
    intermediate layers that the loss reads: fraction f means hidden state floor(f · (L + 1)), where state 0
    is the embeddings.
    """

    weight: AnyNumber = 1.0
    cross_rank: bool = True
    layers: tuple[Share, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """Columns required in addition to anchor and positive; rows without them are refused.

        Possible columns are "negative", "positive_score", "negative_score", "label", "contrast", and
        "judgement". "contrast" requires the row's own negatives in batches in which other rows are not used
        as negatives; "judgement" requires negatives of the row or scores.
        """
        return frozenset()

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        """Kinds of embeddings that the loss can read: vectors, unless a subclass says more.

        A loss that compares embeddings by `Embeddings.similarity` alone can read `ALL_KINDS`.
        """
        return frozenset({"vector"})

    @property
    def in_batch_tasks(self) -> frozenset[TaskKind]:
        """Kinds of task whose batches get `in_batch`, unless sampler, recipe or data say otherwise."""
        return frozenset()

    @property
    def compares_rows(self) -> bool:
        """False if the loss of a row does not depend on other rows, so that `cross_rank` changes nothing."""
        return True

    @property
    def takes_single_texts(self) -> bool:
        """True if the loss also learns from rows that have only an anchor, as those of the task `text`."""
        return False

    def check(self, dimension: int) -> Sequence[str]:
        """Return reasons why the loss cannot be used on embeddings of `dimension` numbers."""
        return ()

    def __call__(self, embeddings: Embeddings) -> Tensor:
        """Return the loss of this batch, a scalar that keeps the graph."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Token ids of one text [t], and the facts about them that a corruption may use.

    `spared` [t] (bool) marks special tokens and tokens of the prompt, which are not changed. `mask_id`
    replaces a hidden token; it is None only for losses that hide no tokens. Ids are below `vocabulary`.
    """

    ids: NDArray[np.int64]
    spared: NDArray[np.bool_]
    mask_id: int | None
    vocabulary: int


@dataclass(frozen=True, slots=True, eq=False)
class LinearHead:
    """Head that predicts tokens with a linear last layer: logits [s, v] of hidden states [s, d].

    Logits are `transform(states)` [s, e] times `weight` [v, e], plus `bias` [v].
    """

    transform: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, states: Tensor) -> Tensor:
        from torch.nn.functional import linear

        return linear(self.transform(states), self.weight, self.bias)


# Label of a token that no loss scores.
UNSCORED_LABEL = -100


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """Mean over scored token positions (MLM, MNTP), computed without all logits in memory at once.

    The runner weights chunks by their number of scored positions, so the result is the mean over the whole
    batch. `weight` is the loss's factor in a sum of losses, applied by the runner.
    """

    weight: AnyNumber = 1.0

    @property
    def causal(self) -> bool:
        """True if the loss predicts each token from the tokens before it, and masks no token.

        If it is True, the loss needs a model with causal attention; otherwise, a model whose tokens attend to
        both sides and that has a mask token.
        """
        return False

    def corrupt(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (corrupted ids, labels), both [t]; UNSCORED_LABEL where no token is scored.

        This is a pure function: the same text and seed give the same corruption in any batch.
        """
        raise NotImplementedError

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean loss of scored positions, given final hidden states [b, t, d] and labels [b, t].

        `head` returns the logits [s, vocabulary] of states [s, d]. If its last layer is linear, it is a
        `LinearHead`.
        """
        raise NotImplementedError


AnyLoss: TypeAlias = "Loss | TokenLoss"


def cuts_windows(losses: Sequence[AnyLoss], info: DatasetInfo) -> bool:
    """Return whether a dataset's texts are cut into windows, as losses over the tokens of texts need."""
    return info.task == "text" and any(isinstance(loss, TokenLoss) for loss in losses)


def list_losses(losses: PerDataset[tuple[AnyLoss, ...]]) -> list[AnyLoss]:
    """Return all losses that an option by dataset names: the default's, then the tasks' and datasets'."""
    return [loss for group in losses.values for loss in group or ()]
