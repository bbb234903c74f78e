"""A teacher's embeddings in a training: the numbers of its losses, and texts without labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    DataError,
    Loss,
    Machine,
    Model,
    ModelRef,
    PerDataset,
    TokenisedText,
    scale_to_unit,
)
from emberge.encoding import TextEmbedder
from emberge.training import FitJob, FitOptions, Session, open_session
from emberge_encoder import TextEncoder
from emberge_train import (
    BatchShuffle,
    EmbeddingDistillation,
    Guide,
    InfoNCE,
    KLDistillation,
    Matryoshka,
    give_guide,
    list_guided_losses,
)
from emberge_train.guides import GuideReader

from tests.support import ranked_fit
from tests.support.exact import ExactEncoder
from tests.support.losses import random_batch
from tests.support.ranked_fit import Training
from tests.support.tolerance import exactly
from tests.support.training_data import InMemory, retrieval, texts

OLD = ModelRef("./old")


def _job(student: Path, teachers: Mapping[str, Path], *losses: Loss, **more: Any) -> FitJob:
    models = {ModelRef(text): Model(text, folder, text * 64) for text, folder in teachers.items()}
    given: dict[str, Any] = {
        "backbone": TextEncoder(),
        "checkpoint": student,
        "datasets": [texts(12)],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=6)),),
        "losses": PerDataset(default=losses),
        "options": FitOptions(dropout=False, learning_rate=1e-3, epochs=1.0),
        **more,
    }
    guides = GuideReader(given["losses"], models.__getitem__, TextEncoder())
    return FitJob(**given, guides=guides)


def _guide(**more: Any) -> Guide:
    return Guide(model=OLD, **more)


def _opened(job: FitJob, work: Path) -> AbstractContextManager[Session]:
    return open_session(job, work=work, store=work, machine=Machine(), progress=lambda *_: None)


def _texts_of(data: InMemory) -> list[str]:
    return [text for row in data.rows for text in (row.anchor, *row.positives, *row.negatives)]


@pytest.mark.parametrize("data", [texts(6), retrieval(6)], ids=["single texts", "pairs"])
def test_loss_and_gradients_are_those_of_a_loop_by_hand(
    bert: Path, berts: Sequence[Path], tmp_path: Path, data: InMemory
) -> None:
    """One text at a time, without chunks, tables or stores; mean over texts of 1 - cos."""
    loss = EmbeddingDistillation(guide=_guide())
    options = FitOptions(dropout=False, positives=2, hard_negatives=1, max_steps=1)
    job = _job(berts[0], {"./old": bert}, loss, datasets=[data], options=options)
    with _opened(job, tmp_path) as session:
        value = float(session.backward(session.plan[0]).loss)
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in session.encoder.module.named_parameters()
            if parameter.grad is not None
        }
    student, teacher = (
        TextEncoder().load(folder, device="cpu", dtype="float32") for folder in (berts[0], bert)
    )
    student.module.eval()
    teacher.module.eval()
    total = torch.zeros(())
    for text in _texts_of(data):
        features = student.collate(student.tokenise([text], prompt="", max_length=None))
        with torch.no_grad():
            goal = teacher(features).embeddings
        total = total + (1 - torch.cosine_similarity(student(features).embeddings, goal)).sum()
    total = total / len(_texts_of(data))
    total.backward()
    assert value == pytest.approx(float(total.detach()), abs=1e-6)
    by_hand = dict(student.module.named_parameters())
    assert gradients
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, by_hand[name].grad, rtol=0, atol=1e-6), name


def test_l2_is_the_squared_distance_of_vectors_as_they_are() -> None:
    batch = random_batch(rows=3)
    teacher = random_batch(rows=3, size=16)
    teacher = dataclasses.replace(teacher, anchor=teacher.anchor * 3)
    valid = batch.valid.clone()
    valid[1, 2] = False
    batch = dataclasses.replace(batch, valid=valid, guide=teacher)
    loss = EmbeddingDistillation(guide=_guide(), distance="l2")
    pairs = [(batch.anchor, teacher.anchor)]
    pairs += [(batch.candidates[valid], teacher.candidates[valid])]
    by_hand = sum(float(((x - g) ** 2).sum()) for x, g in pairs) / (3 + 8)
    assert float(loss(batch)) == pytest.approx(by_hand, rel=1e-12)


def test_a_prefix_learns_the_teachers_prefix() -> None:
    teacher = random_batch(4)
    batch = dataclasses.replace(teacher, anchor=teacher.anchor.flip(0) * 2, guide=teacher)
    inner = EmbeddingDistillation(guide=_guide())
    assert batch.guide is not None

    def cut(one: Any, size: int) -> Any:
        return dataclasses.replace(
            one,
            anchor=one.anchor[..., :size],
            positive=one.positive[..., :size],
            negative=one.negative[..., :size],
        )

    by_hand = sum(
        float(inner(dataclasses.replace(cut(batch, m), guide=cut(batch.guide, m)))) for m in (8, 3)
    )
    assert float(Matryoshka(loss=(inner,), dims=(8, 3))(batch)) == pytest.approx(by_hand)


def test_a_guide_scores_candidates_in_place_of_the_data() -> None:
    batch, teacher = random_batch(4), random_batch(4, 5)
    cosines = torch.einsum(
        "id,icd->ic", scale_to_unit(teacher.anchor), scale_to_unit(teacher.candidates)
    )
    scored = dataclasses.replace(
        batch, positive_score=cosines[:, :1], negative_score=cosines[:, 1:]
    )
    unscored = dataclasses.replace(batch, positive_score=None, negative_score=None, guide=teacher)
    guided = KLDistillation(guide=_guide())
    assert guided.needs == {"negative"}
    assert float(guided(unscored)) == pytest.approx(float(KLDistillation()(scored)))


def test_a_loss_without_its_guide_is_refused(bert: Path, tmp_path: Path) -> None:
    job = _job(bert, {}, EmbeddingDistillation())
    wanted = r"EmbeddingDistillation needs a guide.*guide: {model"
    with pytest.raises(DataError, match=wanted), _opened(job, tmp_path):
        pass
    outer = Matryoshka(loss=(EmbeddingDistillation(), InfoNCE()), dims=(4,))
    (inner,) = list_guided_losses([give_guide(outer, _guide())])
    assert inner.guide == _guide()
    other = Guide(model=ModelRef("./other"))
    assert give_guide(inner, other) == inner


def test_teachers_embed_each_text_once_for_all_students(
    bert: Path, berts: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    embed = TextEmbedder.embed_tokens

    def counted(self: TextEmbedder, some: Sequence[TokenisedText]) -> Any:
        counts.append(len(some))
        return embed(self, some)

    monkeypatch.setattr(TextEmbedder, "embed_tokens", counted)
    data = retrieval(12)
    loss = EmbeddingDistillation(guide=_guide(ahead=True))
    distinct = len(set(_texts_of(data)))
    for student in berts[:2]:
        job = _job(student, {"./old": bert}, loss, datasets=[data])
        with _opened(job, tmp_path) as session:
            session.backward(session.plan[0])
        assert counts == [distinct]


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(bert: Path, berts: Sequence[Path], tmp_path: Path) -> None:
    options = FitOptions(
        dropout=False, learning_rate=1e-3, max_steps=3, logging_steps=1, adam_epsilon=1e-2
    )
    job = _job(
        berts[0],
        {"./old": bert},
        EmbeddingDistillation(guide=_guide(ahead=True)),
        backbone=ExactEncoder(),
        options=options,
        datasets=[texts(14)],
        sampler=(BatchShuffle(batch_size=PerDataset(default=7)),),
        seed=3,
    )
    arguments = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    (two,), (one,) = (
        ranked_fit.run(
            [Training(tmp_path / str(ranks), arguments, exact=True)],
            tmp_path / f"{ranks}.pkl",
            ranks,
        )
        for ranks in (2, 1)
    )
    assert len(two["losses"]) == 3
    assert two["losses"] == exactly(one["losses"], size=1.0)
