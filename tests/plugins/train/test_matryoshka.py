from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from emberge import DataError, Embeddings, Loss
from emberge.testing import change_embeddings, draw_embeddings, with_layers_and_guide
from emberge_train.losses.cosent import CoSENT
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.matryoshka import Matryoshka
from torch import Tensor

from tests.support.tolerance import exactly


@dataclass(frozen=True, kw_only=True)
class _Cosine(Loss):
    """The mean dot product of anchors and positives as they come."""

    def __call__(self, embeddings: Embeddings) -> Tensor:
        return (embeddings.anchor[:, None] * embeddings.positive).sum(-1).mean()


def _pair(q: Tensor, d: Tensor) -> Embeddings:
    return Embeddings(
        anchor=q[None],
        positive=d[None, None],
        negative=q.new_zeros(1, 0, len(q)),
        valid=torch.ones(1, 1, dtype=torch.bool),
        text_id=torch.arange(2)[None],
    )


Q = torch.tensor([3.0, 4, 0, 12], dtype=torch.float64)
D = torch.tensor([4.0, 3, 12, 0], dtype=torch.float64)


def test_matryoshka_has_the_values_worked_by_hand() -> None:
    at = {size: float(Matryoshka(loss=(_Cosine(),), dims=(size,))(_pair(Q, D))) for size in (2, 4)}
    assert at == {2: pytest.approx(0.96, abs=1e-9), 4: pytest.approx(0.142011834, abs=1e-9)}
    both = Matryoshka(loss=(_Cosine(),), dims=(4, 2))(_pair(Q, D))
    assert float(both) == pytest.approx(0.96 + 0.142011834, abs=1e-9)
    weighed = Matryoshka(loss=(_Cosine(),), dims=(4, 2), weights=(2, 0.5))(_pair(Q, D))
    assert float(weighed) == pytest.approx(0.48 + 2 * 0.142011834, abs=1e-9)


def test_it_is_the_sum_of_its_losses_at_each_size() -> None:
    batch = change_embeddings(draw_embeddings(), Tensor.double)
    parts = (InfoNCE(temperature=0.1, weight=2.0), CoSENT(cross_rank=True))
    loss = Matryoshka(loss=parts, dims=(8, 3), weights=(1.0, 0.5))
    expected = sum(
        weight * one.weight * one(_cut(batch, size))
        for size, weight in ((8, 1.0), (3, 0.5))
        for one in parts
    )
    assert float(loss(batch)) == exactly(float(expected))


def _cut(e: Embeddings, size: int) -> Embeddings:
    return replace(
        e,
        anchor=e.anchor[:, :size],
        positive=e.positive[..., :size],
        negative=e.negative[..., :size],
    )


def test_layers_are_cut_and_the_guide_is_not() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sizes(Loss):
        layers: tuple[float, ...] = (0.5,)

        def __call__(self, embeddings: Embeddings) -> Tensor:
            assert embeddings.guide is not None
            seen.append((embeddings.layers[0.5].anchor.shape[1], embeddings.guide.anchor.shape[1]))
            return embeddings.anchor.sum() * 0

    seen: list[tuple[int, int]] = []
    loss = Matryoshka(loss=(Sizes(),), dims=(8, 2))
    assert loss.layers == (0.5,)
    loss(with_layers_and_guide(loss, draw_embeddings()))
    assert seen == [(8, 8), (2, 8)]


def test_a_size_beyond_the_embedding_is_an_error_that_names_both() -> None:
    loss = Matryoshka(loss=(InfoNCE(),), dims=(4, 768))
    said = "dims asks for the first 768 numbers of embeddings that have 8"
    assert loss.check(8) == [said]
    assert not loss.check(768)
    with pytest.raises(DataError, match=f"matryoshka: {said}"):
        loss(draw_embeddings())
    outer = Matryoshka(loss=(Matryoshka(loss=(CoSENT(),), dims=(6,)),), dims=(8, 4))
    assert outer.check(8) == ["dims asks for the first 6 numbers of embeddings that have 4"]
