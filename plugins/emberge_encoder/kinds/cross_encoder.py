"""The backbone of rerankers, which read a query and a document together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import (
    Backbone,
    CheckpointError,
    EmbeddingKind,
    Encoder,
    EncoderFacts,
    Similarity,
    TextLength,
)
from emberge.model_folder import TextLimit

from emberge_encoder.cross_encoder_facts import CrossEncoderFacts
from emberge_encoder.kinds.stock_loading import (
    find_trunk,
    has_architecture,
    load_stock_model,
    read_trunk_config,
)

if TYPE_CHECKING:
    from torch import Tensor

_SCORE = Similarity("pair_score", unit=False)
_CLASSIFIER = "ForSequenceClassification"


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(Backbone):
    """A reranker: query and document go through the model together and come out as one score.

    (Nogueira and Cho, 2019, arXiv:1901.04085.) A folder of sentence-transformers' CrossEncoder, or of a class
    for sequence classification with one output, is used as it is. Any other transformer gets a new head with
    one output, equal at each load. Rows' own negatives are what it learns from: it has no scores of other
    rows' texts. `max_length` counts the tokens of both texts. Saved models are stock folders, which
    CrossEncoder loads.

    Example:
        reranker:
          train:
            model: ./base
            data: ./mined.jsonl
            loss: {infonce: {temperature: 1}}
            negatives: hard_only
            sampler: batch_shuffle
            backbone: cross_encoder
    """

    kind: ClassVar[EmbeddingKind] = "pair_score"

    prompts: dict[str, str] = field(default_factory=dict)
    """Prompts by name, in addition to those of the folder; the one named `query` begins each query."""
    max_length: TextLength | None = None
    """Tokens of a pair at most; by default the folder's own limit."""

    def describe(self, checkpoint: Path, *, predicts: bool = False) -> EncoderFacts:
        try:
            trunk = find_trunk(checkpoint)
            config = read_trunk_config(trunk)
            TextLimit.read(trunk).require(self.max_length)
        except CheckpointError as error:
            return EncoderFacts(problems=(str(error),))
        if problems := CrossEncoderFacts.read(trunk).problems:
            return EncoderFacts(problems=tuple(problems))
        untrained = () if _has_head(config) else ("head with one output",)
        changes = tuple(f"a new {name}" for name in untrained)
        return EncoderFacts(dimension=1, similarity=_SCORE, untrained=untrained, changes=changes)

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Encoder:
        from sentence_transformers import CrossEncoder as Stock

        from emberge_encoder.kinds.stock_model import PairModel

        facts = self.describe(checkpoint)
        if facts.problems:
            raise CheckpointError(facts.problems[0])
        has_head = _has_head(read_trunk_config(find_trunk(checkpoint)))
        fresh = () if has_head else ("classifier", "score", "head")
        model: Any = load_stock_model(Stock, checkpoint, device=device, dtype=dtype, fresh=fresh)
        model.prompts |= self.prompts
        return PairModel(
            model,
            checkpoint,
            similarity=_SCORE,
            dimension=1,
            output=_read_scores,
            max_length=self.max_length,
        )


def _has_head(config: Mapping[str, Any]) -> bool:
    """Return whether a folder's model is of a class for sequence classification."""
    return has_architecture(config, _CLASSIFIER)


def _read_scores(features: Mapping[str, Any]) -> Tensor:
    scores: Tensor = features["scores"]
    return scores
