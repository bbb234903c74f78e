"""Losses of sentence-transformers that can be computed from embeddings, and the reasons why others cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import DataError, Embeddings

if TYPE_CHECKING:
    from torch import Tensor

Reads = Literal[
    "columns",
    "two_columns",
    "triplets",
    "scores",
    "truths",
    "teacher",
    "classes",
    "pair_classes",
    "guide",
]
# How each reads a batch; see `emberge_train.losses.stock`.
READS: dict[str, Reads] = {
    "MultipleNegativesRankingLoss": "columns",
    "MultipleNegativesSymmetricRankingLoss": "columns",
    "GlobalOrthogonalRegularizationLoss": "two_columns",
    "MegaBatchMarginLoss": "two_columns",
    "TripletLoss": "triplets",
    "CoSENTLoss": "scores",
    "AnglELoss": "scores",
    "CosineSimilarityLoss": "scores",
    "ContrastiveLoss": "truths",
    "OnlineContrastiveLoss": "truths",
    "MarginMSELoss": "teacher",
    "DistillKLDivLoss": "teacher",
    "BatchAllTripletLoss": "classes",
    "BatchHardTripletLoss": "classes",
    "BatchHardSoftMarginTripletLoss": "classes",
    "BatchSemiHardTripletLoss": "classes",
    "SoftmaxLoss": "pair_classes",
    "MSELoss": "guide",
    "EmbedDistillLoss": "guide",
}
_CACHED = "runs the model itself to cache gradients, which every loss gets here; take {}"
_DECODES = "trains a decoder on the model's tokens"
REFUSED = {
    "CachedMultipleNegativesRankingLoss": _CACHED.format("MultipleNegativesRankingLoss"),
    "CachedMultipleNegativesSymmetricRankingLoss": _CACHED.format(
        "MultipleNegativesSymmetricRankingLoss"
    ),
    "CachedGISTEmbedLoss": _CACHED.format("infonce: {guide: …}, which is GISTEmbedLoss"),
    "GISTEmbedLoss": "runs its guide itself; take infonce: {guide: …}, which is the same",
    "MatryoshkaLoss": "cuts what the model gives; take matryoshka: {loss: {sentence_transformers: …}}",
    "Matryoshka2dLoss": "takes layers off the model; take matryoshka: {loss: {sentence_transformers: …}}",
    "AdaptiveLayerLoss": "takes layers off the model",
    "ContrastiveTensionLoss": "trains a second copy of the model",
    "ContrastiveTensionLossInBatchNegatives": "trains a second copy of the model",
    "DenoisingAutoEncoderLoss": _DECODES,
}
# Options that the runner has, and the option that does the same here.
_OURS = {
    "model": "the model is the step's",
    "gather_across_devices": "write cross_rank: true",
    "use_mini_batched_version": "every loss is cached here",
    "mini_batch_size": "chunks are the runner's (token_budget)",
    "mini_batch_num_tokens": "chunks are the runner's (token_budget)",
    "show_progress_bar": "progress is the runner's",
}
# Classes whose attributes are the distances that losses name.
_DISTANCES = (
    "SiameseDistanceMetric",
    "TripletDistanceMetric",
    "BatchHardTripletLossDistanceFunction",
)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Columns of embeddings, each [k, d], and their label: one number a row, one a text, or a vector."""

    columns: tuple[Tensor, ...]
    label: Tensor | None = None

    @property
    def share(self) -> int:
        """Factor in the mean over a batch's parts: its number of rows."""
        return len(self.columns[0])


def _yield_slots(e: Embeddings) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each place of a positive with its rows: (row numbers, positives [k, d])."""
    for slot in range(e.positive.shape[1]):
        rows = e.valid[:, slot].nonzero()[:, 0]
        if len(rows):
            yield rows, e.positive[rows, slot]


def _negative_mask(e: Embeddings) -> Tensor:
    """Return the mask of a batch's hard negatives, bool [b, n]."""
    return e.valid[:, e.positive.shape[1] :]


def columns(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor, positive and negatives of the whole batch; row by row where others are no negatives."""
    there = _negative_mask(e)
    for rows, positive in _yield_slots(e):
        if not e.in_batch:
            for place, row in enumerate(rows):
                own = e.negative[row][there[row]]
                columns = (e.anchor[row], positive[place], *own)
                yield Labelled(tuple(column[None] for column in columns))
            continue
        full = there[rows].all(0)
        if (there[rows].any(0) & ~full).any():
            raise DataError(
                "sentence-transformers' columns have no gaps, and rows of one batch have different numbers "
                "of negatives; set fill: repeat, and see that every row has a negative or none has"
            )
        yield Labelled((e.anchor[rows], positive, *e.negative[rows][:, full].unbind(1)))


def two_columns(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive, without negatives."""
    for rows, positive in _yield_slots(e):
        yield Labelled((e.anchor[rows], positive))


def triplets(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its positives and each of its negatives."""
    slots = e.positive.shape[1]
    both = e.valid[:, :slots, None] & e.valid[:, None, slots:]
    row, place, other = both.nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.positive[row, place], e.negative[row, other]))


def scores(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its scored texts, and the score."""
    row, place = (e.valid & ~e.scores.isnan()).nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.candidates[row, place]), e.scores[row, place])


def truths(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each text: 1 for scores of one half or more and unscored positives, else 0."""
    row, place = e.valid.nonzero().unbind(1)
    if len(row):
        score = e.scores[row, place]
        truth = ((score >= 0.5) | (score.isnan() & (place < e.positive.shape[1]))).to(score.dtype)
        yield Labelled((e.anchor[row], e.candidates[row, place]), truth)


def teacher(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor, positive and negatives with a teacher's scores, rows with equally many together."""
    import torch

    slots = e.positive.shape[1]
    scored = e.valid & ~e.scores.isnan()
    for slot in range(slots):
        rows = scored[:, slot].nonzero()[:, 0]
        there = scored[rows][:, slots:]
        for pattern in torch.unique(there, dim=0):
            own = rows[(there == pattern).all(1)]
            if pattern.any():
                texts = (e.positive[own, slot], *e.negative[own][:, pattern].unbind(1))
                label = e.scores[own][:, slots:][:, pattern]
                yield Labelled((e.anchor[own], *texts), _beside(e.scores[own, slot], label))


def classes(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchors and positives in one column, with their row's label."""
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    import torch

    slots = e.positive.shape[1]
    known = (e.label >= 0)[:, None]
    there = torch.cat([known, known & e.valid[:, :slots]], dim=1)
    texts = torch.cat([e.anchor[:, None], e.positive], dim=1)
    if there.any():
        label = e.label[:, None].expand_as(there)
        yield Labelled((texts[there],), label[there])


def pair_classes(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive with the row's label."""
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    for rows, positive in _yield_slots(e):
        known = e.label[rows] >= 0
        if known.any():
            yield Labelled((e.anchor[rows][known], positive[known]), e.label[rows][known])


def guided(e: Embeddings) -> Iterator[Labelled]:
    """Yield all texts in one column, with their embeddings by the guide."""
    import torch

    if e.guide is None:
        raise DataError("a loss that learns a guide's embeddings needs the guide")
    there = torch.cat([e.valid.new_ones(len(e.valid), 1), e.valid], dim=1)
    own = torch.cat([e.anchor[:, None], e.candidates], dim=1)
    seen = torch.cat([e.guide.anchor[:, None], e.guide.candidates], dim=1)
    yield Labelled((own[there],), seen[there].detach())


def _beside(first: Tensor, others: Tensor) -> Tensor:
    import torch

    return torch.cat([first[:, None], others], dim=1)


HOW: Mapping[str, Callable[[Embeddings], Iterator[Labelled]]] = {
    "columns": columns,
    "two_columns": two_columns,
    "triplets": triplets,
    "scores": scores,
    "truths": truths,
    "teacher": teacher,
    "classes": classes,
    "pair_classes": pair_classes,
    "guide": guided,
}


def build_loss(name: str, options: dict[str, Any], stand_in: Any) -> Any:
    """Build a loss of sentence-transformers over an object that replaces the model.

    Functions are given by name, such as `similarity_fct: dot_score` or `distance_metric: EUCLIDEAN`.

    Raises:
        ValueError: for a loss or an option that it has not, or one that is the runner's.
    """
    import inspect

    import sentence_transformers.sentence_transformer.losses as stock
    from emberge import suggest

    kind = getattr(stock, name, None)
    if kind is None:
        hint = suggest(name, list(READS)) or f"; it has {', '.join(sorted(READS))}"
        raise ValueError(f"sentence-transformers has no loss '{name}'{hint}")
    known = inspect.signature(kind.__init__).parameters
    for option in options:
        if option in _OURS:
            raise ValueError(f"{name}: '{option}' is no option here: {_OURS[option]}")
        if option not in known:
            own = [n for n in list(known)[1:] if n not in _OURS]
            hint = suggest(option, own) or f"; it has {', '.join(own) or 'none'}"
            raise ValueError(f"{name} has no option '{option}'{hint}")
    given = {n: _resolve_value(stock, n, v, known[n].default) for n, v in options.items()}
    if "use_mini_batched_version" in known:
        given["use_mini_batched_version"] = False
    return kind(model=stand_in, **given)


def _resolve_value(stock: Any, option: str, value: Any, default: Any) -> Any:
    """Return the value of a recipe's name where the loss takes a function or a module."""
    import sentence_transformers.util as functions
    from torch import nn

    if not isinstance(value, str) or not callable(default):
        return value
    if isinstance(default, nn.Module):
        found = getattr(nn, value, None)
        found = found() if isinstance(found, type) else None
    else:
        distances = [getattr(getattr(stock, holder), value, None) for holder in _DISTANCES]
        own = [d for d in distances if _home(d) == _home(default)]
        found = own[0] if own else getattr(functions, value, None)
    if found is None:
        raise ValueError(f"'{option}: {value}' names no function of sentence-transformers or torch")
    return found


def _home(function: Any) -> str:
    return str(getattr(function, "__qualname__", "")).partition(".")[0]


def StandIn(dimension: int | None) -> Any:  # noqa: N802 - it is a class that needs torch
    """Build what replaces the model for a loss: it passes embeddings on, and has nothing else."""
    import torch
    from torch import nn

    class _StandIn(nn.Module):
        device = torch.device("cpu")

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(features)

        def get_embedding_dimension(self) -> int:
            if dimension is None:
                raise ValueError(
                    "it learns a projection: give the size of embeddings as `dimension`"
                )
            return dimension

        get_sentence_embedding_dimension = get_embedding_dimension

    return _StandIn()
