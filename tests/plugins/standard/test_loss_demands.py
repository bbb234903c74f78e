"""What every loss reads beside anchor and positive, and its options where none are given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from emberge import Loss
from emberge_codiemb.losses.pearson import Pearson
from emberge_codiemb.losses.ranknet import RankNet
from emberge_standard.losses import losses
from emberge_standard.losses.angle import AnglE
from emberge_standard.losses.cosent import CoSENT
from emberge_standard.losses.infonce import InfoNCE
from emberge_standard.losses.kl_distillation import KLDistillation
from emberge_standard.losses.margin_mse import MarginMSE
from emberge_standard.losses.matryoshka import Matryoshka
from emberge_standard.losses.mlm import MLM
from emberge_standard.losses.sentence_transformers import SentenceTransformersLoss

SIMILARITY = {"scale": 20.0, "unscored": False, "cross_rank": False}
# Loss: what it reads, and its own options.
LOSSES: dict[type[Loss], tuple[set[str], dict[str, Any]]] = {
    AnglE: ({"positive_score"}, SIMILARITY),
    CoSENT: ({"positive_score"}, SIMILARITY),
    InfoNCE: (
        {"contrast"},
        {
            **{"temperature": 0.02, "learn_temperature": False, "lowest_temperature": 0.01},
            **{"positives_in_denominator": "all", "slot_reduction": "mean", "symmetric": False},
            **{"own_negatives_only": False, "contrast_anchors": False, "contrast_positives": False},
            **{"mask_equal_text": False, "mask_equal_label": False, "cross_rank": True},
            **{"guide": None, "guide_margin": 0.0, "guide_margin_kind": "absolute"},
        },
    ),
    KLDistillation: (
        {"negative", "positive_score", "negative_score"},
        {
            **{"temperature": 0.05, "teacher_temperature": None, "similarity": "cosine"},
            **{"rescale": False, "cross_rank": False},
        },
    ),
    MarginMSE: (
        {"negative", "positive_score", "negative_score"},
        {"similarity": "cosine", "scale": 1.0, "cross_rank": False},
    ),
    Pearson: ({"positive_score"}, {"cross_rank": False}),
    RankNet: (
        {"positive_score"},
        {"scale": 1.0, "reduction": "sum", "cross_rank": False},
    ),
}


@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.__name__)
def test_what_a_loss_reads_and_its_defaults(kind: type[Loss]) -> None:
    needs, options = LOSSES[kind]
    loss = kind()
    assert loss.needs == needs
    own = {f.name: getattr(loss, f.name) for f in dataclasses.fields(loss)}
    assert own == {"weight": 1.0, "layers": (), **options}


def test_options_change_what_is_read() -> None:
    assert InfoNCE(mask_equal_label=True).needs == {"contrast", "label"}
    for kind in (AnglE, CoSENT):
        assert kind(unscored=True).needs == frozenset()


def test_mlm_hides_three_of_ten_tokens_and_never_swaps_any() -> None:
    options = {f.name: getattr(MLM(), f.name) for f in dataclasses.fields(MLM)}
    assert options == {"weight": 1.0, "share": 0.3, "masked": 1.0, "random": 0.0}


def test_matryoshka_is_what_its_losses_are() -> None:
    inside = (
        InfoNCE(mask_equal_label=True, layers=(1.0, 0.5)),
        MarginMSE(cross_rank=True, layers=(0.25, 0.5)),
    )
    both = Matryoshka(loss=inside, dims=(8, 4))
    assert both.needs == {"contrast", "label", "negative", "positive_score", "negative_score"}
    assert (both.weights, both.cross_rank, both.layers) == ((), True, (0.25, 0.5, 1.0))
    assert not Matryoshka(loss=(MarginMSE(),), dims=(8, 4)).cross_rank


def test_names_that_recipes_use() -> None:
    assert losses() == {
        "infonce": InfoNCE,
        "cosent": CoSENT,
        "angle": AnglE,
        "margin_mse": MarginMSE,
        "kl_distillation": KLDistillation,
        "matryoshka": Matryoshka,
        "mlm": MLM,
        "sentence_transformers": SentenceTransformersLoss,
    }
