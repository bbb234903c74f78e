"""The backbone of late interaction: a vector for each token of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from emberge import CheckpointError, Count, EmbeddingKind, EncoderFacts, TextLength
from emberge.model_folder import Checkpoint, read_object, read_settings

from emberge_encoder.kinds.late_interaction import MaxSim
from emberge_encoder.kinds.stock_loading import StockBackbone, has_architecture, load_stock_model

_NEW_DIMENSION = 128


@dataclass(frozen=True, kw_only=True)
class MultiVector(StockBackbone):
    """A vector for each token, compared by late interaction (ColBERT: Khattab and Zaharia, 2020, 2004.12832).

    A folder of a MultiVectorEncoder (sentence-transformers, PyLate, or ColBERT's own) is used as it says. Any
    other transformer, as of a text encoder, gets a new linear layer to `dimension` numbers, which begins with
    orthogonal rows, and loses its pooling. Vectors have length one. A query's score of a document is the sum
    over the query's tokens of the largest product with a token of the document.

    `expansion` fills a query up to so many tokens with the mask token, whose vectors count too, as in the
    paper, which has 32. `prompts` are texts by name: with `{query: "[unused0] ", document: "[unused1] "}`
    BERT has the paper's markers. Saved models are stock folders, which MultiVectorEncoder loads.

    Example:
        late:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: {infonce: {temperature: 1}}
            sampler: batch_shuffle
            backbone: {multi_vector: {dimension: 128, expansion: 32}}
    """

    kind: ClassVar[EmbeddingKind] = "token_vectors"

    dimension: Count | None = None
    """Size of a token's vector: for a new layer 128, else that of the folder."""
    expansion: TextLength | None = None

    def read_facts(self, checkpoint: Path, config: Mapping[str, Any]) -> EncoderFacts:
        stored = _read_stored_dimension(checkpoint, config)
        if stored is not None and self.dimension not in (None, stored):
            raise CheckpointError(
                f"{checkpoint}: has vectors of {stored} numbers, and dimension: {self.dimension} asks for "
                "others; take the option out, or begin with the encoder that it came from"
            )
        dimension = stored or self.dimension or _NEW_DIMENSION
        change = f"a new linear layer to {dimension} numbers for each token"
        return EncoderFacts(
            dimension=dimension,
            similarity=MaxSim(),
            untrained=() if stored else ("linear layer for vectors of tokens",),
            changes=() if stored else (change,),
        )

    def load_model(self, checkpoint: Path, facts: EncoderFacts, device: str, dtype: str) -> Any:
        from sentence_transformers import MultiVectorEncoder

        model = load_stock_model(MultiVectorEncoder, checkpoint, device, dtype)
        if facts.untrained:
            _replace_projection(model, facts.dimension or _NEW_DIMENSION)
        if self.expansion is not None:
            expansion = {"strategy": "fixed", "attend": False, "length": self.expansion}
            model[0].query_expansion = expansion
        return model


def _read_stored_dimension(checkpoint: Path, config: Mapping[str, Any]) -> int | None:
    """Return the size of a folder's token vectors; None for a folder of another kind of model."""
    if has_architecture(config, "HF_ColBERT"):
        path = checkpoint / "artifact.metadata"
        if not path.is_file():
            return None
        return int(read_object(path).get("dim", _NEW_DIMENSION))
    settings = read_settings(checkpoint)
    kind = settings.get("model_type") or settings.get("similarity_fn_name")
    if str(kind).lower() not in ("multivectorencoder", "maxsim"):
        return None
    layers = [module for module in Checkpoint(checkpoint).modules if module.kind == "Dense"]
    if not layers:
        return int(config["hidden_size"])
    return int(read_object(checkpoint / layers[-1].path / "config.json")["out_features"])


def _replace_projection(model: Any, dimension: int) -> None:
    """Give a converted encoder a linear layer of this size, with orthogonal rows, the same in each load."""
    from emberge_encoder.stock_modules import begin_dense

    number = next(i for i, module in enumerate(model) if type(module).__name__ == "Dense")
    dense: Any = begin_dense(model[number].in_features, dimension)
    dense.module_input_name = dense.module_output_name = "token_embeddings"
    model[number] = dense
