"""Losses of sentence-transformers that emberge has no loss of its own for, computed from embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from emberge import AnyNumber, Embeddings, Loss, NumberRange, suggest

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


# Columns of embeddings, each [k, d], and labels [k] of their rows.
LabelledColumns = tuple[tuple["Tensor", ...], "Tensor | None"]


def read_pairs(e: Embeddings) -> Iterator[LabelledColumns]:
    """Yield anchors with the positives of each slot, and the rows' labels."""
    for slot in range(e.positive.shape[1]):
        rows = e.valid[:, slot].nonzero()[:, 0]
        label = None if e.label is None else e.label[rows]
        yield (e.anchor[rows], e.positive[rows, slot]), label


def read_labelled_pairs(e: Embeddings) -> Iterator[LabelledColumns]:
    """Yield anchors and positives with the row's label, of rows that have one."""
    for (anchor, positive), label in read_pairs(e):
        if label is not None:
            known = label >= 0
            yield (anchor[known], positive[known]), label[known]


def read_labelled_texts(e: Embeddings) -> Iterator[LabelledColumns]:
    """Yield anchors and positives in one column, with their row's label."""
    import torch

    if e.label is None:
        return
    slots = e.positive.shape[1]
    label = e.label[:, None].expand(-1, 1 + slots)
    is_text = torch.cat([e.valid.new_ones(len(label), 1), e.valid[:, :slots]], dim=1)
    known = (label >= 0) & is_text
    texts = torch.cat([e.anchor[:, None], e.positive], dim=1)
    yield (texts[known],), label[known]


def read_triplets(e: Embeddings) -> Iterator[LabelledColumns]:
    """Yield every anchor with each of its positives and each of its negatives."""
    slots = e.positive.shape[1]
    is_complete = e.valid[:, :slots, None] & e.valid[:, None, slots:]
    row, positive, negative = is_complete.nonzero().unbind(1)
    yield (e.anchor[row], e.positive[row, positive], e.negative[row, negative]), None


def read_scored_pairs(e: Embeddings) -> Iterator[LabelledColumns]:
    """Yield every anchor with each of its scored texts, and the score."""
    row, candidate = (e.valid & ~e.scores.isnan()).nonzero().unbind(1)
    yield (e.anchor[row], e.candidates[row, candidate]), e.scores[row, candidate]


def read_judged_pairs(e: Embeddings) -> Iterator[LabelledColumns]:
    """Yield every anchor with each text: 1 for scores of one half or more and unscored positives, else 0."""
    row, candidate = e.valid.nonzero().unbind(1)
    score = e.scores[row, candidate]
    fits = (score >= 0.5) | (score.isnan() & (candidate < e.positive.shape[1]))
    yield (e.anchor[row], e.candidates[row, candidate]), fits.to(score.dtype)


Reader = Callable[[Embeddings], Iterator[LabelledColumns]]
_TRIPLETS = (read_triplets, frozenset({"negative"}))
_SCORED = (read_scored_pairs, frozenset({"positive_score"}))
_LABELLED = (read_labelled_texts, frozenset({"label"}))
# What each loss reads of a batch, and the columns that it needs.
READERS: Mapping[str, tuple[Reader, frozenset[str]]] = {
    "GlobalOrthogonalRegularizationLoss": (read_pairs, frozenset()),
    "MegaBatchMarginLoss": (read_pairs, frozenset()),
    "TripletLoss": _TRIPLETS,
    "AnglELoss": _SCORED,
    "CosineSimilarityLoss": _SCORED,
    "ContrastiveLoss": (read_judged_pairs, frozenset()),
    "OnlineContrastiveLoss": (read_judged_pairs, frozenset()),
    "BatchAllTripletLoss": _LABELLED,
    "BatchHardTripletLoss": _LABELLED,
    "BatchHardSoftMarginTripletLoss": _LABELLED,
    "BatchSemiHardTripletLoss": _LABELLED,
    "SoftmaxLoss": (read_labelled_pairs, frozenset({"label"})),
}


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersLoss(Loss):
    """A loss of sentence-transformers, run by its own code (Reimers and Gurevych, 2019, arXiv:1908.10084).

    `{sentence_transformers: {loss: TripletLoss, options: {triplet_margin: 1}}}`. The library's loss is given
    an object that returns embeddings in place of the model, so chunks, gradient cache and ranks work as for
    other losses. A loss that emberge has itself is refused with its name here, and so is one that needs the
    model.

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
        return READERS[self.loss][1]

    def parameters(self) -> Mapping[str, Tensor]:
        return {name: value.detach() for name, value in self._build_loss().named_parameters()}

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch
        from torch.func import functional_call

        loss = self._build_loss()
        read, _ = READERS[self.loss]
        parts = [(columns, label) for columns, label in read(embeddings) if len(columns[0])]
        rows = sum(len(columns[0]) for columns, _ in parts)
        total = embeddings.anchor.sum() * 0
        for columns, label in parts:
            features = [{"sentence_embedding": column} for column in columns]
            value = functional_call(loss, dict(parameters), (features, label))
            if isinstance(value, Mapping):  # terms, of which training takes the sum
                value = torch.stack(list(value.values())).sum()
            total = total + value * (len(columns[0]) / rows)
        return total

    def _build_loss(self) -> Any:
        """Build the library's loss over a module that returns embeddings in place of the model.

        Raises:
            ValueError: if the library's class refuses the options.
        """
        import inspect

        import sentence_transformers.sentence_transformer.losses as library
        import torch

        class StandIn(torch.nn.Module):
            device = torch.device("cpu")

            def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
                return dict(features)

        kind = getattr(library, self.loss)
        arguments = dict(self.options)
        if "use_mini_batched_version" in inspect.signature(kind.__init__).parameters:
            arguments["use_mini_batched_version"] = False
        try:
            # What it learns always starts as the same numbers.
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(0)
                return kind(model=StandIn(), **arguments)
        except TypeError as error:
            raise ValueError(f"{self.loss}: {error}") from error
