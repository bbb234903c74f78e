"""Losses of sentence-transformers run over embeddings as they run over a model, or are refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emberge import Embeddings, RecipeError, load_plugins, parse_recipe
from emberge.testing import check_loss
from emberge_train.losses.sentence_transformers import (
    NATIVE,
    READERS,
    SentenceTransformersLoss,
    read_pairs,
    read_scored_pairs,
    read_triplets,
)
from torch import Tensor

from tests.support.losses import Through, random_batch


def _bridge(name: str, **options: Any) -> SentenceTransformersLoss:
    return SentenceTransformersLoss(loss=name, options=options)


@pytest.mark.parametrize("name", READERS)
def test_each_keeps_the_laws(name: str) -> None:
    """Their distances are of vectors as they are."""
    check_loss(_bridge(name), lengths=False)


@pytest.mark.parametrize("name", NATIVE)
def test_a_loss_that_is_native_is_refused_with_its_name(name: str) -> None:
    from emberge_train.losses import losses

    with pytest.raises(ValueError, match=f"loss: {name} is `{NATIVE[name]}` here"):
        _bridge(name)
    assert NATIVE[name].partition(":")[0] in losses()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("CachedGISTEmbedLoss", "it can be AnglELoss, "),
        ("AdaptiveLayerLoss", "it can be AnglELoss, "),
        ("TripletLos", "did you mean 'TripletLoss'"),
    ],
)
def test_what_cannot_run_is_refused_with_what_can(name: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        _bridge(name)


def _scored(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    assert batch.positive_score is not None
    return [batch.anchor, batch.positive[:, 0]], batch.positive_score[:, 0]


def _columns(batch: Embeddings) -> tuple[list[Tensor], None]:
    return [batch.anchor, *batch.candidates.unbind(1)], None


# How many negatives, and how a person hands a batch to the library.
BY_HAND: dict[Any, tuple[int, Callable[[Embeddings], tuple[list[Tensor], Tensor | None]]]] = {
    read_pairs: (0, _columns),
    read_triplets: (1, _columns),
    read_scored_pairs: (0, _scored),
}


@pytest.mark.parametrize("name", READERS)
def test_it_is_the_library_s_own_value_and_gradient(name: str) -> None:
    import sentence_transformers.sentence_transformer.losses as library

    negatives, by_hand = BY_HAND[READERS[name][0]]
    batch = random_batch(12, size=8, negatives=negatives, label=torch.arange(12) % 3)
    own = {"use_mini_batched_version": False} if name == "MegaBatchMarginLoss" else {}
    torch.manual_seed(0)
    peer = getattr(library, name)(_Model(8), **own).double()
    ours = _bridge(name)

    mine, theirs = (batch.anchor.clone().requires_grad_() for _ in range(2))
    columns, label = by_hand(dataclasses.replace(batch, anchor=theirs))
    expected = peer([{"sentence_embedding": c} for c in columns], label)
    if isinstance(expected, dict):
        expected = sum(expected.values())
    value = ours(dataclasses.replace(batch, anchor=mine), {})
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    value.backward()
    expected.backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    assert mine.grad.any()


class _Model(Through):
    device = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("TripletLoss", {"triplet_margni": 3}, "TripletLoss: .*triplet_margni"),
        ("TripletLoss", {"model": "x"}, "TripletLoss: .*model"),
    ],
)
def test_options_are_held_to_the_library_s(name: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _bridge(name, **options)(random_batch(4, size=8, negatives=1), {})


RECIPE = """
steps:
  model:
    train:
      model: ./base
      data: {path: x.jsonl, task: sts}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss:
        - sentence_transformers: {loss: TripletLoss, options: {triplet_margin: 10}}
        - sentence_transformers: {loss: %s, weight: 0.5}
"""


def test_a_recipe_sums_them_and_refuses_at_their_line() -> None:
    plugins = load_plugins(block=())
    (step,) = parse_recipe(RECIPE % "CosineSimilarityLoss", plugins).steps
    first, second = step.step.loss.default  # type: ignore[attr-defined]
    assert (first.loss, first.options, second.weight) == (
        "TripletLoss",
        {"triplet_margin": 10},
        0.5,
    )
    with pytest.raises(RecipeError, match=r"recipe:10: .*CoSENTLoss is `cosent` here"):
        parse_recipe(RECIPE % "CoSENTLoss", plugins)
