"""What every loss reads beside anchor and positive, and its options where none are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from emberge import Loss, ModelRef
from emberge.testing import draw_embeddings
from emberge_codiemb import PRO, MidNCE, Pearson, RankKL
from emberge_train import EmbeddingDistillation, Guide
from emberge_train.losses.cosent import CoSENT
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.matryoshka import Matryoshka
from emberge_train.losses.score_distillation import KLDistillation, MarginMSE
from emberge_train.losses.token_losses import MLM


def test_options_change_what_is_read() -> None:
    assert InfoNCE(mask_equal_label=True).needs == {"contrast", "label"}
    assert CoSENT(unscored=True).needs == frozenset()


def test_infonce_takes_other_rows_in_the_tasks_of_boom_also_inside_other_losses() -> None:
    for loss in (InfoNCE(), _cut(), MidNCE(loss=(InfoNCE(),))):
        assert loss.in_batch_tasks == {"retrieval", "reranking"}
    assert CoSENT().in_batch_tasks == frozenset()


def test_matryoshka_is_what_its_losses_are() -> None:
    inside = (
        InfoNCE(mask_equal_label=True, layers=(1.0, 0.5)),
        MarginMSE(cross_rank=True, layers=(0.25, 0.5)),
    )
    both = Matryoshka(loss=inside, dims=(8, 4))
    assert both.needs == {"contrast", "label", "negative", "positive_score", "negative_score"}
    assert (both.weights, both.cross_rank, both.layers) == ((), True, (0.25, 0.5, 1.0))
    assert not Matryoshka(loss=(MarginMSE(),), dims=(8, 4)).cross_rank


def test_mid_nce_takes_true_matches_of_the_middle_layer_and_stays_local() -> None:
    loss = MidNCE(loss=(InfoNCE(mask_equal_label=True, layers=(1.0,)),))
    assert (loss.layer, loss.least_score, loss.layers) == (0.5, 1.0, (0.5, 1.0))
    assert loss.needs == {"positive_score", "label"}
    assert not loss.cross_rank
    assert MidNCE(loss=(InfoNCE(),), layer=None).layers == ()


SCORED: dict[str, Loss] = {
    "cosent": CoSENT(),
    "kl_distillation": KLDistillation(),
    "margin_mse": MarginMSE(),
    "mid_nce": MidNCE(loss=(InfoNCE(),)),
    "pearson": Pearson(),
    "pro": PRO(),
    "rank_kl": RankKL(),
}


OF_A_TEACHER = "a teacher's scores of positives and negatives"
REMEDIES = dict.fromkeys(SCORED, "scores") | {
    "cosent": "scores; set unscored: true",
    "kl_distillation": OF_A_TEACHER,
    "margin_mse": OF_A_TEACHER,
}


@pytest.mark.parametrize("name", SCORED)
def test_a_loss_without_the_scores_it_needs_is_named(name: str) -> None:
    batch = dataclasses.replace(draw_embeddings(), positive_score=None, negative_score=None)
    with pytest.raises(ValueError, match=f"(?i)^{name.replace('_', '_?')} needs {REMEDIES[name]}"):
        SCORED[name](batch)


def _guide(name: str) -> Guide:
    return Guide(model=ModelRef(name))


def _cut(**options: Any) -> Matryoshka:
    return Matryoshka(**{"loss": (InfoNCE(),), "dims": (8, 4), **options})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: MidNCE(loss=()), "loss"),
        (lambda: _cut(dims=(4, 4)), r"different sizes, not \[4, 4\]"),
        (lambda: _cut(dims=()), "at least one loss and one of dims"),
        (lambda: _cut(loss=()), "at least one loss and one of dims"),
        (lambda: _cut(weights=(1.0,)), "2 dims have 1 weights"),
        (lambda: _cut(loss=(InfoNCE(), CoSENT())), "differ in cross_rank"),
        (
            lambda: _cut(loss=tuple(EmbeddingDistillation(guide=_guide(m)) for m in "ab")),
            "different guides",
        ),
        (lambda: MLM(masked=0.6, random=0.5), "masked"),
        (lambda: MLM(masked=0.9, random=0.2), "share"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()
