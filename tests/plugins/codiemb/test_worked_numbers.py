"""The worked numbers of CoDiEmb's losses, of its baselines and of its sampler, each computed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from emberge import Embeddings, Loss
from emberge_codiemb.mid_nce import MidNCE
from emberge_codiemb.pair_losses import PRO, Pearson, RankKL
from emberge_train import CoSENT, InfoNCE

from tests.support.losses import angled_groups, at, scored_pairs

Y4 = ([0.8, 0.6, 0.3, 0.4], [1, 0.5, 0.5, 0])
Y3 = ([0.5, 0.5, 1.0], [1, 0.5, 0])


def of(loss: Loss, example: tuple[list[float], list[float]]) -> float:
    return float(loss(scored_pairs(torch.tensor(example[0], dtype=torch.float64), example[1])))


# ── T-B1: retrieval ─────────────────────────────────────────────────────────────────────────────

GROUPS = angled_groups([[10, 20], [80, 100]], [[60], [150]])


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, 1.093888186), (0.5, 0.760541371), (0.02, 1.315445e-03)],
)
def test_infonce_with_several_positives(temperature: float, expected: float) -> None:
    loss = InfoNCE(temperature=temperature)
    assert float(loss(GROUPS)) == pytest.approx(expected, rel=1e-6)


# ── T-B2 to T-B6: similarity ────────────────────────────────────────────────────────────────────


def test_pearson_has_its_worked_value() -> None:
    assert of(Pearson(), Y4) == pytest.approx(0.263540306, abs=1e-9)


@pytest.mark.parametrize(("temperature", "expected"), [(0.05, 0.018160673), (1.0, 0.025798503)])
def test_rank_kl_has_its_worked_value(temperature: float, expected: float) -> None:
    assert of(RankKL(temperature=temperature), Y4) == pytest.approx(expected / 4, abs=1e-9)


@pytest.mark.parametrize(
    ("example", "temperature", "terms"),
    [
        (Y4, 0.05, [3.8304951e-4, 0.126928011, 1.313261688]),
        (Y4, 1.0, [1.029225226, 0.644396660, 0.718459648]),
        (Y3, 1.0, [1.231837567, 0.825939420]),
    ],
)
def test_pro_has_its_worked_value(example: Any, temperature: float, terms: Sequence[float]) -> None:
    """The pair with the lowest score has none below it and no term; a tie with weight 0 would add to one."""
    mean = of(PRO(temperature=temperature), example)
    assert mean == pytest.approx(sum(terms) / len(terms), abs=2e-9)


def matches(*, layer: float | None) -> Embeddings:
    """Anchors at 0°, 30° and 90°, texts at 10°, 50° and 70°, the middle pair no match; in a layer or not."""
    batch = dataclasses.replace(
        angled_groups([[10], [50], [70]], [[], [], []], anchors=(0, 30, 90), in_batch=False),
        positive_score=torch.tensor([[1.0], [0.4], [1.0]], dtype=torch.float64),
    )
    if layer is None:
        return batch
    others = torch.tensor(at(200, 10, 77), dtype=torch.float64)
    return dataclasses.replace(
        batch, anchor=others, positive=others[:, None], layers={layer: batch}
    )


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.820015652), (0.02, 8.478261e-05)])
@pytest.mark.parametrize("layer", [0.5, None])
def test_mid_nce_has_its_worked_value(
    layer: float | None, temperature: float, expected: float
) -> None:
    loss = MidNCE(loss=(InfoNCE(temperature=temperature),), layer=layer)
    assert float(loss(matches(layer=layer))) == pytest.approx(expected, rel=1e-7)


# ── T-B7: baselines ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (CoSENT(scale=1), [-0.5, -0.122459, 0.622459]),
        (PRO(temperature=1), [-0.354122, -0.083739, 0.381056]),
    ],
)
def test_baselines_have_the_gradients_worked_by_hand(loss: Loss, expected: list[float]) -> None:
    cosines = torch.tensor([0.5, 0.5, 0.9999999], dtype=torch.float64, requires_grad=True)
    loss(scored_pairs(cosines, Y3[1])).backward()
    assert cosines.grad is not None
    assert cosines.grad.tolist() == pytest.approx(expected, abs=1e-5)


# ── T-B8: ranks as targets ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scores", "raw"),
    [
        ([0.9, 0.88, 0.2], [0.549558, 0.449940, 0.000501]),
        ([0.6, 0.2, 0.1], [0.975559, 0.017868, 0.006573]),
    ],
)
def test_targets_do_not_depend_on_how_scores_are_spread(
    scores: list[float], raw: list[float]
) -> None:
    """The gradient is the share of a cosine less its target, over the temperature and the pairs."""
    cosines = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    RankKL(temperature=0.1)(scored_pairs(cosines, scores)).backward()
    assert cosines.grad is not None
    targets = 1 / 3 - 0.1 * 3 * cosines.grad
    assert targets.tolist() == pytest.approx([0.993262, 0.006692, 0.000045], abs=1e-6)
    plain = (torch.tensor(scores, dtype=torch.float64) / 0.1).softmax(0)
    assert plain.tolist() == pytest.approx(raw, abs=1e-6)


# ── T-B9: batches ───────────────────────────────────────────────────────────────────────────────
