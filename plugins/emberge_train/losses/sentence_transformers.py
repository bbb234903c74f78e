"""Losses of sentence-transformers that emberge has no loss of its own for, computed from embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from emberge import AnyNumber, DataError, Embeddings, Loss, NumberRange, suggest

if TYPE_CHECKING:
    from torch import Tensor

# The loss that computes the same; what `Cached` before a name means, the runner does for every loss.
NATIVE = {
    "MultipleNegativesRankingLoss": "infonce",
    "MultipleNegativesSymmetricRankingLoss": "infonce: {symmetric: true}",
    "CoSENTLoss": "cosent",
    "MarginMSELoss": "margin_mse",
    "DistillKLDivLoss": "kl_distillation",
    "MSELoss": "embedding_distillation",
    "EmbedDistillLoss": "embedding_distillation",
    "MatryoshkaLoss": "matryoshka",
}


@dataclass(frozen=True, eq=False)
class Labelled:
    """Columns of embeddings, each [k, d], and labels: one number per row or per text."""

    columns: tuple[Tensor, ...]
    label: Tensor | None = None


Reader = Callable[[Embeddings], Iterator[Labelled]]


def _yield_slots(e: Embeddings) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each positive slot as (indices of the rows that have it, positives [k, d])."""
    for slot in range(e.positive.shape[1]):
        rows = e.valid[:, slot].nonzero()[:, 0]
        if len(rows):
            yield rows, e.positive[rows, slot]


def pairs(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive columns, without negatives."""
    for rows, positive in _yield_slots(e):
        yield Labelled((e.anchor[rows], positive))


def triplets(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its positives and each of its negatives."""
    slots = e.positive.shape[1]
    is_complete = e.valid[:, :slots, None] & e.valid[:, None, slots:]
    row, positive, negative = is_complete.nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.positive[row, positive], e.negative[row, negative]))


def scored_pairs(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its scored texts, and the score."""
    row, candidate = (e.valid & ~e.scores.isnan()).nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.candidates[row, candidate]), e.scores[row, candidate])


def judged_pairs(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each text: 1 for scores of one half or more and unscored positives, else 0."""
    row, candidate = e.valid.nonzero().unbind(1)
    if len(row):
        score = e.scores[row, candidate]
        labels = ((score >= 0.5) | (score.isnan() & (candidate < e.positive.shape[1]))).to(
            score.dtype
        )
        yield Labelled((e.anchor[row], e.candidates[row, candidate]), labels)


def labelled_texts(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchors and positives in one column, with their row's label."""
    import torch

    row_label = _require_labels(e)
    slots = e.positive.shape[1]
    labelled = (row_label >= 0)[:, None]
    is_labelled = torch.cat([labelled, labelled & e.valid[:, :slots]], dim=1)
    texts = torch.cat([e.anchor[:, None], e.positive], dim=1)
    if is_labelled.any():
        label = row_label[:, None].expand_as(is_labelled)
        yield Labelled((texts[is_labelled],), label[is_labelled])


def labelled_pairs(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive with the row's label."""
    row_label = _require_labels(e)
    for rows, positive in _yield_slots(e):
        labelled = row_label[rows] >= 0
        if labelled.any():
            yield Labelled(
                (e.anchor[rows][labelled], positive[labelled]), row_label[rows][labelled]
            )


def _require_labels(e: Embeddings) -> Tensor:
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    return e.label


# What each reads of a batch.
READERS: Mapping[str, Reader] = {
    "GlobalOrthogonalRegularizationLoss": pairs,
    "MegaBatchMarginLoss": pairs,
    "TripletLoss": triplets,
    "AnglELoss": scored_pairs,
    "CosineSimilarityLoss": scored_pairs,
    "ContrastiveLoss": judged_pairs,
    "OnlineContrastiveLoss": judged_pairs,
    "BatchAllTripletLoss": labelled_texts,
    "BatchHardTripletLoss": labelled_texts,
    "BatchHardSoftMarginTripletLoss": labelled_texts,
    "BatchSemiHardTripletLoss": labelled_texts,
    "SoftmaxLoss": labelled_pairs,
}
_NEEDS: Mapping[Reader, frozenset[str]] = {
    triplets: frozenset({"negative"}),
    scored_pairs: frozenset({"positive_score"}),
    labelled_texts: frozenset({"label"}),
    labelled_pairs: frozenset({"label"}),
}


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersLoss(Loss):
    """A loss of sentence-transformers, run by its own code (Reimers and Gurevych, 2019, arXiv:1908.10084).

    `{sentence_transformers: {loss: TripletLoss, options: {triplet_margin: 1}}}`; functions are given by name,
    as in `distance_metric: COSINE`. The library's loss is given an object that returns embeddings in place of
    the model, so chunks, gradient cache and ranks work as for other losses. A loss that emberge has itself is
    refused with its name here, and so is one that needs the model.

    TripletLoss reads all triplets of a row; AnglELoss and CosineSimilarityLoss pairs with their scores;
    ContrastiveLoss and OnlineContrastiveLoss pairs with 1 for a score of at least one half or for a positive
    without a score; the losses named after batches anchors and positives, each with the row's label;
    SoftmaxLoss pairs of both with the label; the others pairs alone. By default each rank compares only its
    own rows, as in the library.

    Example:
        trained:
          train:
            model: ./base
            data: ./triplets.jsonl
            loss: {sentence_transformers: {loss: TripletLoss}}
            sampler: batch_shuffle
    """

    loss: str
    """The name of the library's class."""
    options: dict[str, Annotated[int, NumberRange()] | AnyNumber | bool | str] = field(
        default_factory=dict
    )
    """Arguments of that class, except the model and those that the runner sets."""
    cross_rank: bool = False

    def __post_init__(self) -> None:
        name = self.loss.removeprefix("Cached")
        if name in NATIVE:
            raise ValueError(f"loss: {self.loss} is `{NATIVE[name]}` here")
        if name not in READERS:
            hint = suggest(name, list(READERS)) or f"; it can be {', '.join(sorted(READERS))}"
            raise ValueError(
                f"loss: sentence-transformers has no '{self.loss}' that is computed from embeddings{hint}"
            )

    @property
    def needs(self) -> frozenset[str]:
        return _NEEDS.get(READERS[self.loss], frozenset())

    def parameters(self) -> Mapping[str, Tensor]:
        return {name: value.detach() for name, value in self._build_loss().named_parameters()}

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch
        from torch.func import functional_call

        loss = self._build_loss()
        parts = list(READERS[self.loss](embeddings))
        rows = sum(len(part.columns[0]) for part in parts)
        total = embeddings.anchor.sum() * 0
        for part in parts:
            columns = [{"sentence_embedding": column} for column in part.columns]
            value = functional_call(loss, dict(parameters), (columns, part.label))
            if isinstance(value, Mapping):  # terms, of which training takes the sum
                value = torch.stack(list(value.values())).sum()
            total = total + value * (len(part.columns[0]) / rows)
        return total

    def _build_loss(self) -> Any:
        """Build the library's loss over an object that replaces the model.

        Raises:
            ValueError: if the loss lacks an option, or a value names no function.
        """
        import inspect

        import sentence_transformers.sentence_transformer.losses as library
        import torch

        kind = getattr(library, self.loss)
        parameters = inspect.signature(kind.__init__).parameters
        names = [n for n in list(parameters)[2:] if "mini_batch" not in n]
        for option in self.options:
            if option not in names:
                hint = suggest(option, names) or f"; it has {', '.join(names) or 'none'}"
                raise ValueError(f"{self.loss} has no option '{option}'{hint}")
        arguments = {
            n: _resolve_value(n, v, parameters[n].default) for n, v in self.options.items()
        }
        if "use_mini_batched_version" in parameters:
            arguments["use_mini_batched_version"] = False
        with torch.random.fork_rng(devices=()):  # what it learns always starts as the same numbers
            torch.manual_seed(0)
            return kind(model=_build_stand_in(), **arguments)


def _resolve_value(option: str, value: Any, default: Any) -> Any:
    """Return the function or module that a recipe names, or the value itself where none is expected."""
    import sentence_transformers.sentence_transformer.losses as library
    import sentence_transformers.util as functions
    from torch import nn

    if not isinstance(value, str) or not callable(default):
        return value
    if isinstance(default, nn.Module):
        function = getattr(nn, value, None)
        function = function() if isinstance(function, type) else None
    else:
        holder = getattr(library, default.__qualname__.partition(".")[0], functions)
        function = getattr(holder, value, None)
    if function is None:
        raise ValueError(f"'{option}: {value}' names no function of sentence-transformers or torch")
    return function


def _build_stand_in() -> Any:
    """Build the module that replaces the model for a loss: it returns the embeddings that it gets."""
    import torch
    from torch import nn

    class StandIn(nn.Module):
        device = torch.device("cpu")

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(features)

    return StandIn()
