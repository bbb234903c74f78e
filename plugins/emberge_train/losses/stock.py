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
    """Columns of embeddings, each [k, d], and labels: one number per row or per text, or a vector."""

    columns: tuple[Tensor, ...]
    label: Tensor | None = None

    @property
    def share(self) -> int:
        """Weight of this part in the mean over a batch's parts: the part's number of rows."""
        return len(self.columns[0])


def _yield_slots(e: Embeddings) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each positive slot as (indices of the rows that have it, positives [k, d])."""
    for slot in range(e.positive.shape[1]):
        rows = e.valid[:, slot].nonzero()[:, 0]
        if len(rows):
            yield rows, e.positive[rows, slot]


def _mask_negatives(e: Embeddings) -> Tensor:
    """Return the mask of a batch's hard negatives, bool [b, n]."""
    return e.valid[:, e.positive.shape[1] :]


def columns(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor, positive and negatives: of the whole batch, or row by row without in-batch negatives."""
    is_negative = _mask_negatives(e)
    for rows, positive in _yield_slots(e):
        if not e.in_batch:
            for number, row in enumerate(rows):
                negatives = e.negative[row][is_negative[row]]
                columns = (e.anchor[row], positive[number], *negatives)
                yield Labelled(tuple(column[None] for column in columns))
            continue
        is_full = is_negative[rows].all(0)
        if (is_negative[rows].any(0) & ~is_full).any():
            raise DataError(
                "sentence-transformers' columns have no gaps, and rows of one batch have different numbers "
                "of negatives; set fill: repeat, and see that every row has a negative or none has"
            )
        yield Labelled((e.anchor[rows], positive, *e.negative[rows][:, is_full].unbind(1)))


def two_columns(e: Embeddings) -> Iterator[Labelled]:
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


def scores(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each of its scored texts, and the score."""
    row, candidate = (e.valid & ~e.scores.isnan()).nonzero().unbind(1)
    if len(row):
        yield Labelled((e.anchor[row], e.candidates[row, candidate]), e.scores[row, candidate])


def truths(e: Embeddings) -> Iterator[Labelled]:
    """Yield every anchor with each text: 1 for scores of one half or more and unscored positives, else 0."""
    row, candidate = e.valid.nonzero().unbind(1)
    if len(row):
        score = e.scores[row, candidate]
        labels = ((score >= 0.5) | (score.isnan() & (candidate < e.positive.shape[1]))).to(
            score.dtype
        )
        yield Labelled((e.anchor[row], e.candidates[row, candidate]), labels)


def teacher(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor, positive and negatives with a teacher's scores, rows with equally many together."""
    import torch

    slots = e.positive.shape[1]
    is_scored = e.valid & ~e.scores.isnan()
    for slot in range(slots):
        rows = is_scored[:, slot].nonzero()[:, 0]
        scored_negatives = is_scored[rows][:, slots:]
        for pattern in torch.unique(scored_negatives, dim=0):
            equal_rows = rows[(scored_negatives == pattern).all(1)]
            if pattern.any():
                texts = (
                    e.positive[equal_rows, slot],
                    *e.negative[equal_rows][:, pattern].unbind(1),
                )
                label = e.scores[equal_rows][:, slots:][:, pattern]
                yield Labelled(
                    (e.anchor[equal_rows], *texts), _join_columns(e.scores[equal_rows, slot], label)
                )


def classes(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchors and positives in one column, with their row's label."""
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    import torch

    slots = e.positive.shape[1]
    labelled = (e.label >= 0)[:, None]
    labelled_texts = torch.cat([labelled, labelled & e.valid[:, :slots]], dim=1)
    texts = torch.cat([e.anchor[:, None], e.positive], dim=1)
    if labelled_texts.any():
        label = e.label[:, None].expand_as(labelled_texts)
        yield Labelled((texts[labelled_texts],), label[labelled_texts])


def pair_classes(e: Embeddings) -> Iterator[Labelled]:
    """Yield anchor and positive with the row's label."""
    if e.label is None:
        raise DataError("sentence-transformers' losses of classes need labels")
    for rows, positive in _yield_slots(e):
        labelled = e.label[rows] >= 0
        if labelled.any():
            yield Labelled((e.anchor[rows][labelled], positive[labelled]), e.label[rows][labelled])


def guided(e: Embeddings) -> Iterator[Labelled]:
    """Yield all texts in one column, with their embeddings by the guide."""
    import torch

    if e.guide is None:
        raise DataError("a loss that learns a guide's embeddings needs the guide")
    valid = torch.cat([e.valid.new_ones(len(e.valid), 1), e.valid], dim=1)
    embeddings = torch.cat([e.anchor[:, None], e.candidates], dim=1)
    guide_embeddings = torch.cat([e.guide.anchor[:, None], e.guide.candidates], dim=1)
    yield Labelled((embeddings[valid],), guide_embeddings[valid].detach())


def _join_columns(first: Tensor, others: Tensor) -> Tensor:
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
        ValueError: if the library lacks the loss or an option, or emberge itself sets an option.
    """
    import inspect

    import sentence_transformers.sentence_transformer.losses as stock
    from emberge import suggest

    kind = getattr(stock, name, None)
    if kind is None:
        hint = suggest(name, list(READS)) or f"; it has {', '.join(sorted(READS))}"
        raise ValueError(f"sentence-transformers has no loss '{name}'{hint}")
    parameters = inspect.signature(kind.__init__).parameters
    for option in options:
        if option in _OURS:
            raise ValueError(f"{name}: '{option}' is no option here: {_OURS[option]}")
        if option not in parameters:
            option_names = [n for n in list(parameters)[1:] if n not in _OURS]
            hint = suggest(option, option_names) or f"; it has {', '.join(option_names) or 'none'}"
            raise ValueError(f"{name} has no option '{option}'{hint}")
    arguments = {n: _resolve_value(stock, n, v, parameters[n].default) for n, v in options.items()}
    if "use_mini_batched_version" in parameters:
        arguments["use_mini_batched_version"] = False
    return kind(model=stand_in, **arguments)


def _resolve_value(stock: Any, option: str, value: Any, default: Any) -> Any:
    """Return the function or module that the recipe names."""
    import sentence_transformers.util as functions
    from torch import nn

    if not isinstance(value, str) or not callable(default):
        return value
    if isinstance(default, nn.Module):
        function = getattr(nn, value, None)
        function = function() if isinstance(function, type) else None
    else:
        distances = [getattr(getattr(stock, holder), value, None) for holder in _DISTANCES]
        same_class = [d for d in distances if _find_class(d) == _find_class(default)]
        function = same_class[0] if same_class else getattr(functions, value, None)
    if function is None:
        raise ValueError(f"'{option}: {value}' names no function of sentence-transformers or torch")
    return function


def _find_class(function: Any) -> str:
    return str(getattr(function, "__qualname__", "")).partition(".")[0]


def StandIn(dimension: int | None) -> Any:  # noqa: N802 - it is a class that needs torch
    """Build the module that replaces the model for a loss: it returns the embeddings that it gets."""
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
