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


# Columns of embeddings, each [k, d], and the scores [k] of their rows.
ScoredColumns = tuple[tuple["Tensor", ...], "Tensor | None"]


def read_pairs(e: Embeddings) -> Iterator[ScoredColumns]:
    """Yield anchors with the positives of each slot."""
    for slot in range(e.positive.shape[1]):
        rows = e.valid[:, slot].nonzero()[:, 0]
        yield (e.anchor[rows], e.positive[rows, slot]), None


def read_triplets(e: Embeddings) -> Iterator[ScoredColumns]:
    """Yield every anchor with each of its positives and each of its negatives."""
    slots = e.positive.shape[1]
    is_complete = e.valid[:, :slots, None] & e.valid[:, None, slots:]
    row, positive, negative = is_complete.nonzero().unbind(1)
    yield (e.anchor[row], e.positive[row, positive], e.negative[row, negative]), None


def read_scored_pairs(e: Embeddings) -> Iterator[ScoredColumns]:
    """Yield every anchor with each of its scored texts, and the score."""
    row, candidate = (e.valid & ~e.scores.isnan()).nonzero().unbind(1)
    yield (e.anchor[row], e.candidates[row, candidate]), e.scores[row, candidate]


Reader = Callable[[Embeddings], Iterator[ScoredColumns]]
_TRIPLETS = (read_triplets, frozenset({"negative"}))
_SCORED = (read_scored_pairs, frozenset({"positive_score"}))
# What each loss reads of a batch, and the columns that it needs.
READERS: Mapping[str, tuple[Reader, frozenset[str]]] = {
    "GlobalOrthogonalRegularizationLoss": (read_pairs, frozenset()),
    "MegaBatchMarginLoss": (read_pairs, frozenset()),
    "TripletLoss": _TRIPLETS,
    "AnglELoss": _SCORED,
    "CosineSimilarityLoss": _SCORED,
}


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersLoss(Loss):
    """A loss of sentence-transformers, run by its own code (Reimers and Gurevych, 2019, arXiv:1908.10084).

    `{sentence_transformers: {loss: TripletLoss, options: {triplet_margin: 1}}}`. The library's loss is given
    an object that returns embeddings in place of the model, so chunks, gradient cache and ranks work as for
    other losses. A loss that emberge has itself is refused with its name here, and so is one that needs the
    model, labels, or numbers that it learns.

    TripletLoss reads all triplets of a row, AnglELoss and CosineSimilarityLoss pairs with their scores, the
    others pairs alone. By default each rank compares only its own rows, as in the library.

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

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch

        loss = self._build_loss()
        read, _ = READERS[self.loss]
        parts = [(columns, score) for columns, score in read(embeddings) if len(columns[0])]
        rows = sum(len(columns[0]) for columns, _ in parts)
        total = embeddings.anchor.sum() * 0
        for columns, score in parts:
            features = [{"sentence_embedding": column} for column in columns]
            value = loss(features, score)
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
            return kind(model=StandIn(), **arguments)
        except TypeError as error:
            raise ValueError(f"{self.loss}: {error}") from error
