"""Losses: pure functions of embeddings, or of hidden states for token losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from emberge.contracts.backbone import Backbone, EncoderFacts
from emberge.contracts.dataset import DatasetInfo
from emberge.contracts.option import AnyNumber, PerDataset, Share, TextLength
from emberge.contracts.reference import ModelRef
from emberge.contracts.similarity import COSINE, EmbeddingKind, Similarity, describe_kinds

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


COLUMNS = frozenset({"anchor", "positive", "negative"})


@dataclass(frozen=True, kw_only=True)
class Guide:
    """Frozen model whose embeddings of each batch a loss gets, next to those of the trained model.

    `backbone` loads `model`; by default it is a backbone of the training's kind with default options. Texts
    get the guide's own prompts, if it has any, and are cut to `max_length` tokens, by default the guide's own
    limit.

    With `ahead` all texts of the data are embedded before the first step. Their embeddings are kept on disk,
    where later trainings with the same model and data find them.
    """

    model: ModelRef
    backbone: Backbone | None = None
    max_length: TextLength | None = None
    ahead: bool = False

    def choose_backbone(self, trained: Backbone) -> Backbone:
        """Return the guide's backbone, by default one of the class of `trained`."""
        return self.backbone if self.backbone is not None else type(trained)()


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
    `valid` is False. Embeddings of a column that no loss of the dataset `embeds` are NaN. `layers` are
    embeddings of the intermediate layers that the loss asks for. `guide` are the embeddings of its guide,
    without a gradient. `in_batch` is True if other rows' texts are negatives. Embeddings come as the encoder
    returns them: a loss compares them by `similarity`. `progress` is the share of the training's steps that
    are done, 0 to 1.
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
    def embeds(self) -> frozenset[str]:
        """Columns whose embeddings the loss reads: some of "anchor", "positive" and "negative".

        Texts of a column that no loss of a dataset reads are not encoded by the trained model.
        """
        return COLUMNS

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        """Kinds of embeddings that the loss can read: vectors, unless a subclass says more.

        A loss that compares embeddings by `Embeddings.similarity` alone can read `ALL_KINDS`.
        """
        return frozenset({"vector"})

    @property
    def guided_by(self) -> Guide | None:
        """The guide, whose embeddings the loss reads as `Embeddings.guide`; None without a guide."""
        return None

    @property
    def compares_with_guide(self) -> bool:
        """True if the loss compares the model's embeddings with the guide's, so their sizes must be equal."""
        return False

    @property
    def lacks_guide(self) -> bool:
        """True if the loss cannot be computed without a guide, and has none."""
        return False

    @property
    def takes_single_texts(self) -> bool:
        """True if the loss also learns from rows that have only an anchor, as those of the task `text`."""
        return False

    def with_guide(self, guide: Guide) -> Self:
        """Return the loss with this guide if it lacks one; otherwise, the loss itself."""
        changed: dict[str, Any] = {"guide": guide}
        return replace(self, **changed) if self.lacks_guide else self

    def check(self, dimension: int) -> Sequence[str]:
        """Return reasons why the loss cannot be used on embeddings of `dimension` numbers."""
        return ()

    def parameters(self) -> Mapping[str, Tensor]:
        """Return initial values of the loss's learned numbers (a temperature), which each call receives."""
        return {}

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of this batch, a scalar that keeps the graph."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OuterLoss(Loss):
    """A loss that changes embeddings and passes them to one or several weighted inner losses.

    The inner losses' needs, learned values and problems become its own. A subclass sets
    `cross_rank`, and calls `inner` for the inner losses' sum.
    """

    loss: tuple[Loss, ...]
    layers: tuple[float, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if not self.loss:
            raise ValueError("loss takes at least one loss")
        guides = [
            inner_loss.guided_by for inner_loss in self.loss if inner_loss.guided_by is not None
        ]
        if any(guide != guides[0] for guide in guides):
            raise ValueError("its losses have different guides; wrap each of them by itself")
        layers = {layer for inner_loss in self.loss for layer in inner_loss.layers}
        object.__setattr__(self, "layers", tuple(sorted(layers)))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(inner_loss.needs for inner_loss in self.loss))

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return frozenset.intersection(*(inner_loss.kinds for inner_loss in self.loss))

    @property
    def guided_by(self) -> Guide | None:
        return next(
            (inner_loss.guided_by for inner_loss in self.loss if inner_loss.guided_by is not None),
            None,
        )

    @property
    def compares_with_guide(self) -> bool:
        return any(inner_loss.compares_with_guide for inner_loss in self.loss)

    @property
    def lacks_guide(self) -> bool:
        return any(inner_loss.lacks_guide for inner_loss in self.loss)

    @property
    def takes_single_texts(self) -> bool:
        return all(inner_loss.takes_single_texts for inner_loss in self.loss)

    def with_guide(self, guide: Guide) -> Self:
        return replace(self, loss=tuple(inner_loss.with_guide(guide) for inner_loss in self.loss))

    def check(self, dimension: int) -> Sequence[str]:
        return [fault for inner_loss in self.loss for fault in inner_loss.check(dimension)]

    def parameters(self) -> Mapping[str, Tensor]:
        return {
            f"{number}.{name}": value
            for number, loss in enumerate(self.loss)
            for name, value in loss.parameters().items()
        }

    def inner(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the inner losses, each with its learned parameters."""
        total = embeddings.anchor.new_zeros(())
        for number, loss in enumerate(self.loss):
            prefix = f"{number}."
            learned = {
                name.removeprefix(prefix): value
                for name, value in parameters.items()
                if name.startswith(prefix)
            }
            total = total + loss.weight * loss(embeddings, learned)
        return total


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
        """Return (corrupted ids, labels), both [t]; labels are -100 where no token is scored.

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


def kind_problems(losses: Sequence[AnyLoss], info: DatasetInfo) -> Iterator[str]:
    """Yield reasons why losses do not fit a dataset: pairs, or single texts.

    Single texts need losses over tokens, or losses of embeddings that take single texts, but not both. Losses
    that lack a guide fit no dataset.
    """
    for loss in losses:
        if isinstance(loss, Loss) and loss.lacks_guide:
            yield f"loss {type(loss).__name__} needs a guide; name its model: guide: {{model: …}}"
    if cuts_windows(losses, info) and not all(isinstance(loss, TokenLoss) for loss in losses):
        yield (
            f"dataset '{info.name}' (text) has losses over tokens and others in one sum; give it the ones, "
            "and the same file under another name the others"
        )
    for loss in losses:
        name, of_tokens = type(loss).__name__, isinstance(loss, TokenLoss)
        if of_tokens and info.task != "text":
            yield (
                f"loss {name} predicts tokens of single texts, and dataset '{info.name}' is of the task "
                f"{info.task}; give a loss of embeddings under by_task: {{{info.task}: …}}, or read the file "
                "as texts with task: text"
            )
        if isinstance(loss, Loss) and info.task == "text" and not loss.takes_single_texts:
            yield (
                f"loss {name} compares texts, and dataset '{info.name}' (text) has single ones; give a "
                "token loss (mlm) or embedding_distillation under by_task: {text: …}, or name its columns as "
                "pairs"
            )


def loss_problems(
    losses: PerDataset[tuple[AnyLoss, ...]], info: DatasetInfo, *, scored: bool
) -> Iterator[str]:
    """Yield reasons why a dataset, which is `scored` or not, cannot be trained on by its losses."""
    losses_of_dataset = losses.of(info.name, info.task)
    if not losses_of_dataset:
        yield (
            f"dataset '{info.name}' has no loss for its task {info.task}; give one under default, "
            f"by_task: {{{info.task}: …}} or by_dataset"
        )
    yield from kind_problems(losses_of_dataset or (), info)
    for loss in losses_of_dataset or ():
        if isinstance(loss, Loss) and "positive_score" in loss.needs and not scored:
            yield (
                f"loss {type(loss).__name__} needs scores, which dataset '{info.name}' ({info.task}) does "
                "not have; choose another under by_task"
            )


def prediction_problems(
    losses: Sequence[AnyLoss], backbone: Backbone, checkpoint: Path
) -> Iterator[str]:
    """Yield reasons why a backbone's encoder of a checkpoint cannot predict tokens for losses over tokens.

    There are no reasons without losses over tokens, or for an encoder that cannot be loaded at all.
    """
    over_tokens = [loss for loss in losses if isinstance(loss, TokenLoss)]
    facts = backbone.describe(checkpoint, predicts=True) if over_tokens else EncoderFacts()
    if not over_tokens or facts.problems:
        return
    prediction = facts.prediction
    if prediction is None:
        yield f"{type(backbone).__name__} predicts no tokens; choose a backbone that does"
        return
    yield from prediction.problems
    if not all(loss.causal for loss in over_tokens):
        yield from prediction.hidden
    if any(loss.causal for loss in over_tokens):
        yield from prediction.causal


def embedding_problems(
    losses: PerDataset[tuple[AnyLoss, ...]], facts: EncoderFacts
) -> Iterator[str]:
    """Yield reasons why losses cannot be used on the embeddings of an encoder: their kind, or their size."""
    losses_given = (losses.default, *losses.by_task.values(), *losses.by_dataset.values())
    checked: list[Loss] = []
    for loss in (any_loss for losses_of_set in losses_given for any_loss in losses_of_set or ()):
        if not isinstance(loss, Loss) or loss in checked:
            continue
        checked.append(loss)
        name, kind = type(loss).__name__, facts.similarity.kind
        if kind not in loss.kinds:
            yield (
                f"loss {name} reads {describe_kinds(loss.kinds)}, and the model gives "
                f"{describe_kinds({kind})}; take a loss that asks for similarities, such as infonce, or "
                "another backbone"
            )
        elif facts.dimension is not None:
            yield from (f"loss {name}: {text}" for text in loss.check(facts.dimension))
