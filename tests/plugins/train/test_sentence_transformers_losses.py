"""Every loss of sentence-transformers runs over embeddings as it runs over a model, or is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emberge import DataError, Embeddings, RecipeError, load_plugins, parse_recipe
from emberge.testing import check_loss
from emberge_train.losses.sentence_transformers import SentenceTransformersLoss
from emberge_train.losses.stock import READS, REFUSED
from torch import Tensor, nn

from tests.support.losses import GUIDE, Through, random_batch

# What a loss cannot do without.
LEAST: dict[str, dict[str, Any]] = {
    "SoftmaxLoss": {"options": {"embedding_dimension": 8, "num_labels": 3}},
    "MSELoss": {"guide": GUIDE, "dimension": 8, "options": {"projection_dim": 5}},
    "EmbedDistillLoss": {"guide": GUIDE, "dimension": 8, "options": {"projection_dim": 5}},
}


def _bridge(name: str, **more: Any) -> SentenceTransformersLoss:
    return SentenceTransformersLoss(loss=name, **more)


def test_every_loss_of_the_library_runs_or_is_refused() -> None:
    import sentence_transformers.sentence_transformer.losses as stock

    theirs = {
        name
        for name, kind in vars(stock).items()
        if inspect.isclass(kind) and issubclass(kind, nn.Module)
    }
    assert {*READS, *REFUSED} == theirs
    assert not set(READS) & set(REFUSED)


@pytest.mark.parametrize("name", READS)
def test_each_keeps_the_laws(name: str) -> None:
    """Their distances are of vectors as they are, and their columns have no gaps."""
    loss = _bridge(name, **LEAST.get(name, {}))
    check_loss(loss, lengths=False, filling=READS[name] != "columns")


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_model_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=f"loss: {name} (runs|cuts|takes|trains)"):
        _bridge(name)


def _scored(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    assert batch.positive_score is not None
    return [batch.anchor, batch.positive[:, 0]], batch.positive_score[:, 0]


def _true(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    columns, scores = _scored(batch)
    return columns, (scores >= 0.5).double()


def _classed(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    assert batch.label is not None
    return [torch.cat([batch.anchor, batch.positive[:, 0]])], batch.label.repeat(2)


def _pair_classed(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    assert batch.label is not None
    return [batch.anchor, batch.positive[:, 0]], batch.label


def _guided(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    assert batch.guide is not None
    return [torch.cat([batch.anchor, batch.positive[:, 0]])], torch.cat(
        [batch.guide.anchor, batch.guide.positive[:, 0]]
    )


def _plain(batch: Embeddings) -> tuple[list[Tensor], None]:
    return [batch.anchor, *batch.candidates.unbind(1)], None


def _two(batch: Embeddings) -> tuple[list[Tensor], None]:
    return [batch.anchor, batch.positive[:, 0]], None


def _taught(batch: Embeddings) -> tuple[list[Tensor], Tensor]:
    return _plain(batch)[0], batch.scores


# How many negatives, and how a person hands a batch to the library.
BY_HAND: dict[str, tuple[int, Callable[[Embeddings], tuple[list[Tensor], Tensor | None]]]] = {
    "columns": (2, _plain),
    "two_columns": (0, _two),
    "triplets": (1, _plain),
    "scores": (0, _scored),
    "truths": (0, _true),
    "teacher": (3, _taught),
    "classes": (0, _classed),
    "pair_classes": (0, _pair_classed),
    "guide": (0, _guided),
}


@pytest.mark.parametrize("name", READS)
def test_it_is_the_library_s_own_value_and_gradient(name: str) -> None:
    import sentence_transformers.sentence_transformer.losses as stock

    negatives, by_hand = BY_HAND[READS[name]]
    batch = random_batch(12, size=8, negatives=negatives, label=torch.arange(12) % 3)
    options: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if name == "SoftmaxLoss":
        options = LEAST[name]["options"]
    if READS[name] == "guide":
        seen = random_batch(13, size=8, negatives=0)
        batch = dataclasses.replace(batch, guide=_first_rows(seen, 12))
        more = {"guide": GUIDE}
    kind = getattr(stock, name)
    own = {"use_mini_batched_version": False} if name == "MegaBatchMarginLoss" else {}
    torch.manual_seed(0)
    with warnings.catch_warnings():  # one of them is made of another, and says so
        warnings.simplefilter("ignore", DeprecationWarning)
        peer = kind(_Model(8), **options, **own).double()
    ours = _bridge(name, options=options, **more)
    learned = {n: value.double() for n, value in ours.parameters().items()}

    mine, theirs = (batch.anchor.clone().requires_grad_() for _ in range(2))
    columns, label = by_hand(dataclasses.replace(batch, anchor=theirs))
    expected = peer([{"sentence_embedding": c} for c in columns], label)
    if isinstance(expected, dict):
        expected = sum(expected.values())
    value = ours(dataclasses.replace(batch, anchor=mine), learned)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    value.backward()
    expected.backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    assert mine.grad.any()


class _Model(Through):
    device = torch.device("cpu")


def _first_rows(batch: Embeddings, count: int) -> Embeddings:
    keep = slice(0, count)
    return dataclasses.replace(
        batch,
        anchor=batch.anchor[keep],
        positive=batch.positive[keep],
        negative=batch.negative[keep],
        valid=batch.valid[keep],
        text_id=batch.text_id[keep],
    )


def test_functions_are_given_by_name() -> None:
    batch = random_batch(6, negatives=1)
    plain = _bridge("TripletLoss")(batch, {})
    cosine = _bridge("TripletLoss", options={"distance_metric": "COSINE"})(batch, {})
    assert float(plain) != pytest.approx(float(cosine))
    dot = _bridge("MultipleNegativesRankingLoss", options={"similarity_fct": "dot_score"})
    assert float(dot(batch, {})) != pytest.approx(
        float(_bridge("MultipleNegativesRankingLoss")(batch, {}))
    )
    huber = _bridge("CosineSimilarityLoss", options={"loss_fct": "L1Loss"})
    assert float(huber(batch, {})) > 0


def test_rows_whose_neighbours_are_no_negatives_stand_alone() -> None:
    batch = random_batch(5, negatives=2, in_batch=False)
    loss = _bridge("MultipleNegativesRankingLoss", options={"scale": 5.0})
    terms = torch.cosine_similarity(batch.anchor[:, None], batch.candidates, dim=-1) * 5
    expected = (terms.logsumexp(1) - terms[:, 0]).mean()
    assert float(loss(batch, {})) == pytest.approx(float(expected), rel=1e-6)


def test_gaps_in_columns_are_refused() -> None:
    batch = random_batch(4, negatives=2)
    valid = batch.valid.clone()
    valid[0, -1] = False
    with pytest.raises(DataError, match="set fill: repeat"):
        _bridge("MultipleNegativesRankingLoss")(dataclasses.replace(batch, valid=valid), {})


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("CoSENTLos", {}, "did you mean 'CoSENTLoss'"),
        ("OfNextYear", {}, "set `reads` to how it reads a batch"),
        ("MSELoss", {}, "name the guide"),
    ],
)
def test_what_cannot_be_is_said_at_once(name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _bridge(name, **more)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CoSENTLoss", {"scael": 3}, "no option 'scael'; did you mean 'scale'"),
        ("CoSENTLoss", {"similarity_fct": "nearness"}, "names no function"),
        ("MultipleNegativesRankingLoss", {"gather_across_devices": True}, "cross_rank: true"),
        ("MSELoss", {"projection_dim": 4}, "size of embeddings as `dimension`"),
    ],
)
def test_options_are_held_to_the_library_s(name: str, options: Any, message: str) -> None:
    more = {"guide": GUIDE} if name == "MSELoss" else {}
    with pytest.raises(ValueError, match=message):
        _bridge(name, options=options, **more).parameters()


def test_a_later_release_s_loss_is_run_as_it_is_told_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sentence_transformers.sentence_transformer.losses as stock

    class OfNextYear(stock.CoSENTLoss):  # type: ignore[misc]
        pass

    monkeypatch.setattr(stock, "OfNextYear", OfNextYear, raising=False)
    batch = random_batch(6, negatives=0)
    found = _bridge("OfNextYear", reads="scores")(batch, {})
    assert float(found) == float(_bridge("CoSENTLoss")(batch, {}))


RECIPE = """
steps:
  model:
    train:
      model: ./base
      data: {path: x.jsonl, task: sts}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss:
        - sentence_transformers: {loss: CoSENTLoss, options: {scale: 10}}
        - sentence_transformers: {loss: %s, weight: 0.5}
"""


def test_a_recipe_sums_them_and_refuses_at_their_line() -> None:
    plugins = load_plugins(block=())
    (step,) = parse_recipe(RECIPE % "CosineSimilarityLoss", plugins).steps
    first, second = step.step.loss.default  # type: ignore[attr-defined]
    assert (first.loss, first.options, second.weight) == ("CoSENTLoss", {"scale": 10}, 0.5)
    with pytest.raises(RecipeError, match="ContrastiveTensionLoss trains a second copy"):
        parse_recipe(RECIPE % "ContrastiveTensionLoss", plugins)
