"""Losses of sentence-transformers that can be computed from embeddings, and the reasons why others cannot."""

from __future__ import annotations

from typing import Any, Literal

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
# How each reads a batch; see `emberge_train.losses.rows`.
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
    given = {n: _resolved(stock, n, v, known[n].default) for n, v in options.items()}
    if "use_mini_batched_version" in known:
        given["use_mini_batched_version"] = False
    return kind(model=stand_in, **given)


def _resolved(stock: Any, option: str, value: Any, default: Any) -> Any:
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
    from torch import Tensor, nn

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
