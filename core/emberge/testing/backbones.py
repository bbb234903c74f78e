"""Laws of backbones, for any plugin. A broken law raises an AssertionError with the law's name."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from emberge.contracts import Backbone, Encoder, EncoderFacts
from emberge.encoding import EncodePlan, TextEmbedder, encode_and_backward, forward

TEXTS = ("open a file", "sort a list of numbers by value", "the weather", "a", "Find the Last Row!")


def check_backbone(backbone: Backbone, checkpoint: Path) -> None:
    """Check a backbone against its laws on a checkpoint.

    `describe` reports no problem, and the dimension of the embeddings; `kind` is that of the encoder's
    similarity, one vector a text. `stored_names` has the names of parameters. A text's embedding depends
    neither on its place in a batch nor on the other texts. Gradients are finite. The saved folder, loaded by
    plain SentenceTransformers, gives the same embeddings to 1e-5.

    Raises:
        AssertionError: if a law is broken; the message begins with its name.
    """
    from sentence_transformers import SentenceTransformer

    encoder = backbone.load(checkpoint, device="cpu", dtype="float32")
    assert backbone.kind == encoder.similarity.kind, (
        "kind: it is not that of the encoder's similarity"
    )
    tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
    with torch.no_grad():
        width = forward(encoder, tokens).embeddings.shape[-1]
    assert width == encoder.dimension, "dimension: it is not that of embeddings"
    batch_embeddings = TextEmbedder(encoder).embed(TEXTS)
    chunked_embeddings = TextEmbedder(encoder, token_budget=8).embed(TEXTS[::-1])[::-1]
    assert np.abs(batch_embeddings - chunked_embeddings).max() <= 1e-5, (
        "neighbours: an embedding depends on them"
    )
    _check_facts(backbone.describe(checkpoint), encoder)
    encode_and_backward(
        encoder,
        tokens,
        lambda e: e.embeddings[:, 0].sum(),
        EncodePlan(64, draws_random=False),
        seed=0,
    )
    grads = [p.grad for p in encoder.module.parameters() if p.grad is not None]
    assert grads, "gradients: none reaches the weights"
    assert all(torch.isfinite(g).all() for g in grads), "gradients: one is not finite"
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        saved_model = SentenceTransformer(
            folder, device="cpu", local_files_only=True, trust_remote_code=False
        )
        saved_embeddings = saved_model.encode(list(TEXTS), show_progress_bar=False)
    assert np.abs(batch_embeddings - saved_embeddings).max() <= 1e-5, (
        "save: the folder gives other embeddings through SentenceTransformer"
    )


def _check_facts(facts: EncoderFacts, encoder: Encoder) -> None:
    """Check a backbone's description, and the names of weights, against the loaded encoder."""
    assert not facts.problems, f"describe: it names problems: {facts.problems}"
    assert facts.dimension in (None, encoder.dimension), (
        "describe: dimension is not that of embeddings"
    )
    parameters = {name for name, _ in encoder.module.named_parameters()}
    assert set(encoder.stored_names()) <= parameters, "stored_names: some are of no parameter"
