"""Embeddings of a batch: candidates, their scores, and batches of some rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from emberge import Embeddings


def build_embeddings() -> Embeddings:
    """Return two rows with a positive, two negatives and scores of the positives."""
    values = torch.arange(2 * 4 * 3, dtype=torch.float32).view(2, 4, 3)
    return Embeddings(
        anchor=values[:, 0],
        positive=values[:, 1:2],
        negative=values[:, 2:],
        valid=torch.ones(2, 3, dtype=torch.bool),
        text_id=torch.arange(8).view(2, 4),
        positive_score=torch.tensor([[0.5], [1.0]]),
    )


def test_candidates_are_the_positives_and_then_the_negatives() -> None:
    batch = build_embeddings()
    assert batch.candidates[0].tolist() == [
        *batch.positive[0].tolist(),
        *batch.negative[0].tolist(),
    ]


def test_candidates_without_a_score_have_nan() -> None:
    scores = build_embeddings().scores
    assert scores[:, 0].tolist() == [0.5, 1.0]
    assert scores.isnan().tolist() == [[False, True, True]] * 2


def test_some_rows_of_a_batch_have_all_its_columns_layers_and_guide() -> None:
    batch = build_embeddings()
    part = replace(batch, layers={0.5: batch}, guide=batch).take(torch.tensor([1]))
    assert part.anchor.tolist() == batch.anchor[1:].tolist()
    assert part.scores[:, 0].tolist() == [1.0]
    assert part.text_id.tolist() == [[4, 5, 6, 7]]
    assert part.guide is not None
    assert part.guide.candidates.shape == part.layers[0.5].candidates.shape == (1, 3, 3)
