"""The backbone of sparse vectors over a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from emberge import CheckpointError, EmbeddingKind, EncoderFacts, Positive, Similarity
from emberge.model_folder import Checkpoint, read_settings, read_trunk_settings

from emberge_encoder.stock.stock_loading import StockBackbone, find_trunk, load_stock_model


@dataclass(frozen=True, kw_only=True)
class Splade(StockBackbone):
    """Sparse vectors over the vocabulary (SPLADE: Formal et al., 2021, arXiv:2107.05720).

    A text's weight of a token is the largest log(1 + relu(logit)) over the text's tokens, where the logits
    are those of the head that predicts masked tokens (max pooling: SPLADE v2, arXiv:2109.10086). The folder
    needs such a head: a training with `mlm` and `backbone: {text_encoder: {fresh_head: true}}` gives one to
    an encoder without it. Texts are compared by the dot product. Add the loss `flops`, which keeps vectors
    sparse. Saved models are stock folders, which SparseEncoder loads.

    Adding a constant to all logits does not change a softmax. So the logits of a head that was begun fresh
    lie about zero, and nearly all tokens of the vocabulary would have a weight. `offset` is subtracted from
    them where a SPLADE begins: 8 leaves some hundred tokens of a text after a short training of such a head.

    Example:
        loss: [{infonce: {temperature: 1}}, {flops: {weight: 0.001}}]
        backbone: splade
    """

    kind: ClassVar[EmbeddingKind] = "sparse"

    offset: Positive | None = None
    """Number that is subtracted from all logits, once, where a SPLADE begins from a head."""

    def read_facts(self, checkpoint: Path, config: Mapping[str, Any]) -> EncoderFacts:
        kinds = {module.kind for module in Checkpoint(checkpoint).modules}
        if self.offset is not None and "SpladePooling" in kinds:
            raise CheckpointError(
                f"{checkpoint}: is a SPLADE already, whose logits have their offset; take offset out"
            )
        if "SparseAutoEncoder" in kinds:
            raise CheckpointError(
                f"{checkpoint}: its sparse vectors are of an autoencoder (CSR), not over a vocabulary; begin "
                "with the model that it came from"
            )
        size = config.get("vocab_size")
        if not isinstance(size, int):
            raise CheckpointError(f"{checkpoint}: its config.json has no vocab_size; get it again")
        return EncoderFacts(dimension=size, similarity=Similarity("sparse", unit=False))

    def load_model(self, checkpoint: Path, facts: EncoderFacts, device: str, dtype: str) -> Any:
        from sentence_transformers import SparseEncoder

        kinds = {module.kind for module in Checkpoint(checkpoint).modules}
        stock_class = SparseEncoder if "SpladePooling" in kinds else _begin_splade
        model: Any = load_stock_model(stock_class, checkpoint, device, dtype)
        if self.offset is not None:
            bias = getattr(model[0].model.get_output_embeddings(), "bias", None)
            if bias is None:
                raise CheckpointError(
                    f"{checkpoint}: its head has no bias to subtract an offset from; take offset out"
                )
            bias.data.sub_(self.offset)
        return model


def _begin_splade(folder: str, *, device: str, **options: Any) -> Any:
    """Return a model on a transformer with a head that predicts tokens, whatever its folder was for.

    Left to itself the library would put an autoencoder onto an encoder of whole texts.
    """
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    trunk = find_trunk(Path(folder))
    shared = {name: options[name] for name in ("local_files_only", "trust_remote_code")}
    settings = read_trunk_settings(trunk)
    transformer = Transformer(
        str(trunk),
        transformer_task="fill-mask",
        max_seq_length=settings.get("max_seq_length"),
        do_lower_case=bool(settings.get("do_lower_case")),
        model_kwargs={**shared, **options["model_kwargs"]},
        processor_kwargs=shared,
        config_kwargs=shared,
    )
    prompts = read_settings(Path(folder)).get("prompts", {})
    modules = [transformer, SpladePooling(pooling_strategy="max")]
    return SparseEncoder(modules=modules, prompts=prompts, device=device)
