"""The backbone of rerankers, which read a query and a document together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from emberge import CheckpointError, EmbeddingKind, EncoderFacts, Similarity
from emberge.model_folder import Checkpoint, read_object, read_settings

from emberge_encoder.stock.stock_loading import (
    StockBackbone,
    find_trunk,
    has_architecture,
    load_stock_model,
)

_CLASSIFIER = "ForSequenceClassification"
# A class of transformers has so many outputs unless its config names them.
_DEFAULT_OUTPUTS = 2


@dataclass(frozen=True, slots=True)
class CrossEncoderFacts:
    """Facts of a folder that may be a cross-encoder; `outputs` is the number of its scores or classes.

    It `is_one` if sentence-transformers' CrossEncoder saved it, or if it is a bare folder of a
    sequence-classification class of transformers.
    """

    folder: Path
    is_one: bool
    outputs: int

    @classmethod
    def read(cls, folder: Path) -> CrossEncoderFacts:
        """Return the facts of a model folder, from its configs alone.

        Raises:
            CheckpointError: if a file cannot be read.
        """
        path = folder / "config.json"
        config = read_object(path) if path.is_file() else {}
        names, labels = config.get("architectures"), config.get("id2label")
        first = str(next(iter(names), "")) if isinstance(names, list) else ""
        classifies = first.endswith(_CLASSIFIER)
        is_saved = read_settings(folder).get("model_type") == "CrossEncoder"
        outputs = len(labels) if isinstance(labels, dict) and labels else _DEFAULT_OUTPUTS
        is_one = is_saved if Checkpoint(folder).modules else classifies
        return cls(folder, is_one, outputs if classifies else 1)

    @property
    def noun(self) -> str:
        """Phrase for its kind: a reranker or a classifier."""
        if self.outputs != 1:
            return f"a classifier with {self.outputs} outputs, which embeds no text"
        return "a reranker (cross-encoder), which scores pairs of texts and embeds none"

    @property
    def remedy(self) -> str:
        """Advice for whoever wants an embedder."""
        encoder = "take the encoder that it came from"
        if self.outputs != 1:
            return encoder
        return (
            f"{encoder}; evaluate and train take rerankers with backbone: cross_encoder, and score_pairs as "
            "its teacher"
        )

    @property
    def problems(self) -> list[str]:
        """Reasons why it cannot score pairs."""
        if self.outputs == 1:
            return []
        return [
            f"{self.folder / 'config.json'}: the model has {self.outputs} outputs, which are classes; a "
            "cross-encoder that scores pairs has one (id2label), so choose such a model, or the encoder that "
            "it came from"
        ]


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(StockBackbone):
    """A reranker: query and document go through the model together and come out as one score.

    (Nogueira and Cho, 2019, arXiv:1901.04085.) A folder of sentence-transformers' CrossEncoder, or of a class
    for sequence classification with one output, is used as it is. Any other transformer gets a new head with
    one output, equal at each load. Rows' own negatives are what it learns from: it has no scores of other
    rows' texts. `max_length` counts the tokens of both texts. Saved models are stock folders, which
    CrossEncoder loads.

    Example:
        data: ./mined.jsonl
        loss: {infonce: {temperature: 1}}
        negatives: hard_only
        backbone: cross_encoder
    """

    kind: ClassVar[EmbeddingKind] = "pair_score"

    def read_facts(self, checkpoint: Path, config: Mapping[str, Any]) -> EncoderFacts:
        for problem in CrossEncoderFacts.read(find_trunk(checkpoint)).problems:
            raise CheckpointError(problem)
        is_new = not has_architecture(config, _CLASSIFIER)
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
