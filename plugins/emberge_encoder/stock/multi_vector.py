"""The backbone of late interaction, a vector for each token of a text, and the similarity of such texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import CheckpointError, Count, EmbeddingKind, EncoderFacts, Similarity, TextLength
from emberge.model_folder import Checkpoint, read_object, read_settings
from emberge.numerics import apply_blockwise, find_lowest_score, log_sum_products

from emberge_encoder.stock.stock_loading import StockBackbone, has_architecture, load_stock_model

if TYPE_CHECKING:
    from torch import Tensor

_NEW_DIMENSION = 128


@dataclass(frozen=True)
class MaxSim(Similarity):
    """Late interaction (ColBERT: Khattab and Zaharia, 2020, arXiv:2004.12832) of token vectors [t, d].

    The score of a query and a document is the sum over the query's tokens of the largest product with a token
    of the document. Vectors of tokens that do not count, as padding, are zero. Texts of a table may have
    different numbers of tokens on its two sides.
    """

    kind: EmbeddingKind = "token_vectors"

    def own_scores(self, left: Tensor, right: Tensor) -> Tensor:
        import torch

        products = torch.einsum("isd,ictd->icst", left, right)
        return _sum_largest(products, _is_padding(right)[:, :, None])

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        # One product of matrices is many times faster than an einsum over four dimensions.
        products = (left.flatten(0, 1) @ right.flatten(0, 1).T).view(
            left.shape[0], left.shape[1], right.shape[0], right.shape[1]
        )
        return _sum_largest(products.transpose(1, 2), _is_padding(right)[None, :, None])

    def log_sums(
        self,
        left: Tensor,
        right: Tensor,
        excluded: Callable[[slice], Tensor | None],
        scale: float = 1.0,
    ) -> Tensor:
        if not len(right):
            return log_sum_products(left.sum(1), right.sum(1), excluded)
        cells_a_row = left.shape[1] * right.shape[0] * right.shape[1]

        def compute_block(block: slice) -> Tensor:
            scores, is_excluded = self.table(left[block], right) * scale, excluded(block)
            if is_excluded is not None:
                scores = scores.masked_fill(is_excluded, find_lowest_score(scores))
            return scores.logsumexp(dim=1)

        return apply_blockwise(len(left), cells_a_row, compute_block)


def _is_padding(vectors: Tensor) -> Tensor:
    """Return the mask [..., t] of token vectors [..., t, d] that do not count."""
    return (vectors == 0).all(-1)


def _sum_largest(products: Tensor, padding: Tensor) -> Tensor:
    """Return the sum over s of the largest product over t, of products [..., s, t] without padding t.

    A zero row of the left gives 0. A text on the right without any token gives 0, too.
    """
    import torch

    lowest = torch.finfo(products.dtype).min / 4
    largest = products.masked_fill(padding, lowest).amax(-1)
    return largest.masked_fill(padding.all(-1), 0.0).sum(-1)


@dataclass(frozen=True, kw_only=True)
class MultiVector(StockBackbone):
    """A vector for each token, compared by late interaction (ColBERT: Khattab and Zaharia, 2020, 2004.12832).

    A folder of a MultiVectorEncoder (sentence-transformers, PyLate, or ColBERT's own) is loaded with its own
    settings. Any
    other transformer, as of a text encoder, gets a new linear layer to `dimension` numbers, which begins with
    orthogonal rows, and loses its pooling. Vectors have length one. A query's score of a document is the sum
    over the query's tokens of the largest product with a token of the document.

    `expansion` fills a query up to so many tokens with the mask token, whose vectors count too, as in the
    paper, which has 32. `prompts` are texts by name: with `{query: "[unused0] ", document: "[unused1] "}`
    BERT has the paper's markers. Saved models are stock folders, which MultiVectorEncoder loads.

    Example:
        loss: {infonce: {temperature: 1}}
        backbone: {multi_vector: {dimension: 128, expansion: 32}}
    """

    kind: ClassVar[EmbeddingKind] = "token_vectors"

    dimension: Count | None = None
    """Size of a token's vector; by default that of the folder's layer, or 128 for a new layer."""
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

        from emberge_encoder.stock_modules import begin_dense

        model = load_stock_model(MultiVectorEncoder, checkpoint, device, dtype)
        if facts.untrained:
            # A converted encoder has a random layer; this one is the same in each load.
            number = next(i for i, m in enumerate(model) if type(m).__name__ == "Dense")
            size = facts.dimension or _NEW_DIMENSION
            dense: Any = begin_dense(model[number].in_features, size)
            dense.module_input_name = dense.module_output_name = "token_embeddings"
            model[number] = dense
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
