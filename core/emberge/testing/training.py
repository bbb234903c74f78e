"""Laws of samplers and backbones. A broken law raises an AssertionError."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from emberge.contracts import Backbone, Batch, DatasetInfo, Encoder, EncoderFacts, Pool, Sampler
from emberge.encoding import EncodePlan, TextEmbedder, encode_and_backward

TEXTS = ("open a file", "sort a list of numbers by value", "the weather", "a", "Find the Last Row!")


def check_sampler(sampler: Sampler, pool: Pool | None = None, *, repeats: bool = False) -> None:
    """Check a sampler against its laws.

    The same seed gives the same rows, and another seed other rows. Every row is in the pool. A batch has
    different rows of one dataset. Unless `repeats` is set, no row occurs twice in an epoch.
    """
    pool = pool or {
        DatasetInfo("first", "retrieval", 101): range(101),
        DatasetInfo("second", "sts", 128): range(1, 128, 2),
        DatasetInfo("third", "retrieval", 230): range(230),
    }
    selection, again = (_list_rows(sampler.select(pool, 7)) for _ in range(2))
    assert selection == again, "select with one seed chose different rows"
    pool_rows = _list_rows(pool)
    for name, rows in selection.items():
        assert set(rows) <= set(pool_rows[name]), f"select made up rows of '{name}'"
        assert repeats or len(set(rows)) == len(rows), f"select took a row of '{name}' twice"
    if type(sampler).batches is Sampler.batches:
        covers_pool = all(rows == pool_rows[name] for name, rows in selection.items())
        assert _list_rows(sampler.select(pool, 8)) != selection or covers_pool, (
            "select ignores its seed"
        )
        return
    first, second, other = (list(sampler.batches(pool, seed)) for seed in (7, 7, 8))
    assert _list_parts(first) == _list_parts(second), "batches with one seed differ"
    assert _list_parts(first) != _list_parts(other), "batches ignore their seed"
    _check_batches(first, pool_rows, repeats)


def _check_batches(
    batches: Sequence[Batch], rows_by_dataset: Mapping[str, Sequence[int]], repeats: bool
) -> None:
    seen: set[tuple[str, int]] = set()
    for batch in batches:
        names = {part.dataset for part in batch.parts}
        assert len(names) == 1, f"a batch mixes datasets: {sorted(names)}"
        rows = [(part.dataset, int(row)) for part in batch.parts for row in part.rows]
        assert rows, "a batch is empty"
        assert len(set(rows)) == len(rows), "a row is in a batch twice"
        assert repeats or not seen & set(rows), "a row is in two batches of an epoch"
        for name, row in rows:
            assert row in rows_by_dataset[name], f"row {row} of '{name}' is not in the pool"
        seen |= set(rows)


def _list_rows(pool: Pool) -> dict[str, list[int]]:
    return {info.name: [int(row) for row in rows] for info, rows in pool.items()}


def _list_parts(batches: Sequence[Batch]) -> list[tuple[str, tuple[int, ...]]]:
    return [(p.dataset, tuple(int(r) for r in p.rows)) for b in batches for p in b.parts]


def check_backbone(backbone: Backbone, checkpoint: Path) -> None:
    """Check a backbone against its laws on a checkpoint.

    `describe` reports no problem, and the dimension of the embeddings; `kind` is that of the encoder's
    similarity, one vector a text. `stored_names` has the names of parameters. A text's embedding depends
    neither on its place in a batch nor on the other texts. Gradients are finite. The saved folder, loaded by
    plain SentenceTransformers, gives the same embeddings to 1e-5.
    """
    from sentence_transformers import SentenceTransformer

    encoder = backbone.load(checkpoint, device="cpu", dtype="float32")
    assert backbone.kind == encoder.similarity.kind, "kind is not that of the encoder's similarity"
    batch_embeddings = TextEmbedder(encoder).embed(TEXTS)
    assert batch_embeddings.shape == (len(TEXTS), encoder.dimension), (
        "dimension is not that of embeddings"
    )
    chunked_embeddings = TextEmbedder(encoder, token_budget=8).embed(TEXTS[::-1])[::-1]
    assert np.abs(batch_embeddings - chunked_embeddings).max() <= 1e-5, (
        "an embedding depends on its neighbours"
    )
    _check_facts(backbone.describe(checkpoint), encoder)
    tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
    encode_and_backward(
        encoder,
        tokens,
        lambda e: e.embeddings[:, 0].sum(),
        EncodePlan(64, draws_random=False),
        seed=0,
    )
    grads = [p.grad for p in encoder.module.parameters() if p.grad is not None]
    assert grads, "no gradient reaches the weights"
    assert all(torch.isfinite(g).all() for g in grads), "a gradient is not finite"
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        saved_model = SentenceTransformer(
            folder, device="cpu", local_files_only=True, trust_remote_code=False
        )
        saved_embeddings = saved_model.encode(list(TEXTS), show_progress_bar=False)
    assert np.abs(batch_embeddings - saved_embeddings).max() <= 1e-5, (
        "the saved folder gives other embeddings through SentenceTransformer"
    )


def _check_facts(facts: EncoderFacts, encoder: Encoder) -> None:
    """Check a backbone's description, and the names of weights, against the loaded encoder."""
    assert not facts.problems, f"describe: it names problems: {facts.problems}"
    assert facts.dimension in (None, encoder.dimension), (
        "describe: dimension is not that of embeddings"
    )
    parameters = {name for name, _ in encoder.module.named_parameters()}
    assert set(encoder.stored_names()) <= parameters, "stored_names: some are of no parameter"
