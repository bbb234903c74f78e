"""The backbone of rerankers, which read a query and a document together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from emberge import CheckpointError, EmbeddingKind, EncoderFacts, Similarity

from emberge_encoder.accepted_folders import CrossEncoderFacts
from emberge_encoder.kinds.stock_loading import (
    StockBackbone,
    find_trunk,
    has_architecture,
    load_stock_model,
)


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(StockBackbone):
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

    def read_facts(self, checkpoint: Path, config: Mapping[str, Any]) -> EncoderFacts:
        for problem in CrossEncoderFacts.read(find_trunk(checkpoint)).problems:
            raise CheckpointError(problem)
        is_new = not has_architecture(config, "ForSequenceClassification")
        return EncoderFacts(
            dimension=1,
            similarity=Similarity("pair_score", unit=False),
            untrained=("head with one output",) if is_new else (),
            changes=("a new head with one output",) if is_new else (),
        )

    def load_model(self, checkpoint: Path, facts: EncoderFacts, device: str, dtype: str) -> Any:
        from sentence_transformers import CrossEncoder as Stock

        fresh = ("classifier", "score", "head") if facts.untrained else ()
        return load_stock_model(Stock, checkpoint, device, dtype, fresh)
