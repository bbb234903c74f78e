"""A teacher's embeddings in a training: the numbers of its losses, ensembles, and texts without labels."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    DataError,
    Guide,
    Loss,
    Machine,
    Model,
    ModelRef,
    PerDataset,
    TokenisedText,
    unit_vectors,
)
from emberge.encoding import TextEmbedder
from emberge.numerics import unit_rows
from emberge.training import FitJob, FitOptions, open_session
from emberge_encoder import TextEncoder
from emberge_train import (
    BatchShuffle,
    EmbeddingDistillation,
    InfoNCE,
    KLDistillation,
    Matryoshka,
    SimilarityDistillation,
)
from torch import Tensor

from tests.support import ranked_fit, tiny
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
        "guides": models.__getitem__,
        **more,
    }
    return FitJob(**given)


def _guide(*others: str, **more: Any) -> Guide:
    return Guide(model=OLD, ensemble=tuple(map(ModelRef, others)), **more)


def _texts_of(data: InMemory) -> list[str]:
    return [text for row in data.rows for text in (row.anchor, *row.positives, *row.negatives)]


def _embedder(folder: Path) -> TextEmbedder:
    return TextEmbedder(TextEncoder().load(folder, device="cpu", dtype="float32"))


@pytest.mark.parametrize("data", [texts(6), retrieval(6)], ids=["single texts", "pairs"])
def test_loss_and_gradients_are_those_of_a_loop_by_hand(
    bert: Path, berts: Sequence[Path], tmp_path: Path, data: InMemory
) -> None:
    """One text at a time, without chunks, tables or stores; mean over texts of 1 - cos."""
    loss = EmbeddingDistillation(guide=_guide())
    options = FitOptions(dropout=False, positives=2, hard_negatives=1, max_steps=1)
    job = _job(berts[0], {"./old": bert}, loss, datasets=[data], options=options)
    with open_session(
        job, work=tmp_path, store=tmp_path, machine=Machine(), progress=lambda *_: None
    ) as session:
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
    assert float(loss(batch, {})) == pytest.approx(by_hand, rel=1e-12)


def test_a_batchs_similarities_by_hand() -> None:
    """Three texts, of which two are equal: the equal ones see the third alone, so only it diverges."""
    batch = random_batch(rows=1, positives=1, negatives=1)
    ids = torch.tensor([[5, 5, 9]])
    batch = dataclasses.replace(batch, text_id=ids, guide=random_batch(1, 4, 1))
    loss = SimilarityDistillation(guide=_guide(), temperature=0.5)

    def chances(vectors: Tensor) -> Tensor:
        unit = unit_vectors(vectors)
        return torch.softmax(unit[2] @ unit[:2].T / 0.5, 0)

    assert batch.guide is not None
    p = chances(torch.cat([batch.guide.anchor, *batch.guide.candidates]))
    q = chances(torch.cat([batch.anchor, *batch.candidates]))
    by_hand = float((p * (p / q).log()).sum()) / 3
    assert float(loss(batch, {})) == pytest.approx(by_hand, rel=1e-9)


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
        float(inner(dataclasses.replace(cut(batch, m), guide=cut(batch.guide, m)), {}))
        for m in (8, 3)
    )
    assert float(Matryoshka(loss=(inner,), dims=(8, 3))(batch, {})) == pytest.approx(by_hand)


def test_a_guide_scores_candidates_in_place_of_the_data() -> None:
    batch, teacher = random_batch(4), random_batch(4, 5)
    cosines = torch.einsum(
        "id,icd->ic", unit_vectors(teacher.anchor), unit_vectors(teacher.candidates)
    )
    scored = dataclasses.replace(
        batch, positive_score=cosines[:, :1], negative_score=cosines[:, 1:]
    )
    unscored = dataclasses.replace(batch, positive_score=None, negative_score=None, guide=teacher)
    guided = KLDistillation(guide=_guide())
    assert guided.needs == {"negative"}
    assert float(guided(unscored, {})) == pytest.approx(float(KLDistillation()(scored, {})))


def _teacher_vectors(job: FitJob, work: Path) -> tuple[Tensor, list[str]]:
    """The guide's embeddings of all anchors in the order of rows, and these texts."""
    with open_session(
        job, work=work, store=work, machine=Machine(), progress=lambda *_: None
    ) as session:
        (table,) = session.tables.values()
        assert table.guide is not None
        rows = np.asarray(table.starts[:-1])
        return table.guide(rows), [row.anchor for row in job.datasets[0].rows]  # type: ignore[attr-defined]


def test_siblings_are_averaged_as_vectors(
    bert: Path, berts: Sequence[Path], tmp_path: Path
) -> None:
    loss = EmbeddingDistillation(guide=_guide("./b", "./c"))
    places = {"./old": bert, "./b": berts[0], "./c": berts[1]}
    found, anchors = _teacher_vectors(_job(berts[2], places, loss), tmp_path)
    single = [unit_rows(_embedder(folder).embed(anchors)) for folder in places.values()]
    assert np.allclose(found, unit_rows(np.mean(single, axis=0)), atol=1e-6)


def test_scores_of_teachers_of_any_space_are_averaged(
    bert: Path, berts: Sequence[Path], tmp_path: Path
) -> None:
    wide = tiny.checkpoint(tmp_path / "wide", "xlm-roberta", seed=5, hidden_size=16)
    loss = SimilarityDistillation(guide=_guide("./b", combine="scores"))
    places = {"./old": bert, "./b": wide}
    found, anchors = _teacher_vectors(_job(berts[2], places, loss), tmp_path)
    single = [unit_rows(_embedder(folder).embed(anchors)) for folder in places.values()]
    mean = np.mean([vectors @ vectors.T for vectors in single], axis=0)
    assert np.allclose(found @ found.T, mean, atol=1e-5)


@pytest.mark.parametrize("size", [16, 32])
def test_an_average_of_foreign_vectors_is_refused(
    bert: Path, berts: Sequence[Path], tmp_path: Path, size: int
) -> None:
    other = tiny.checkpoint(tmp_path / "other", "xlm-roberta", seed=5, hidden_size=size)
    job = _job(berts[2], {"./old": bert, "./b": other}, EmbeddingDistillation(guide=_guide("./b")))
    with pytest.raises(
        DataError, match=r"./b and ./old have vectors of different spaces.*similarity_distil"
    ):
        _teacher_vectors(job, tmp_path)


def test_a_loss_without_its_guide_is_refused(bert: Path, tmp_path: Path) -> None:
    job = _job(bert, {}, EmbeddingDistillation())
    with pytest.raises(DataError, match=r"EmbeddingDistillation needs a guide.*guide: {model"):
        _teacher_vectors(job, tmp_path)
    outer = Matryoshka(loss=(EmbeddingDistillation(), InfoNCE()), dims=(4,))
    assert outer.lacks_guide
    assert outer.with_guide(_guide()).guided_by == _guide()


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
        with open_session(
            job, work=tmp_path, store=tmp_path, machine=Machine(), progress=lambda *_: None
        ) as session:
            session.backward(session.plan[0])
        assert counts == [distinct]


@pytest.mark.slow
def test_stored_teachers_are_in_memory_one_after_another(
    bert: Path, berts: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two datasets; the student, which is loaded first, stays. Progress names the teacher at work."""
    loaded: list[weakref.ref[Any]] = []
    most_in_memory, notes = 0, []
    load = TextEncoder.load

    def counted(self: TextEncoder, checkpoint: Path, **options: Any) -> Any:
        nonlocal most_in_memory
        encoder = load(self, checkpoint, **options)
        loaded.append(weakref.ref(encoder))
        gc.collect()
        most_in_memory = max(most_in_memory, sum(one() is not None for one in loaded))
        return encoder

    def progress(done: int, total: int, unit: str = "", note: str = "") -> None:
        notes.append(note)

    monkeypatch.setattr(TextEncoder, "load", counted)
    loss = EmbeddingDistillation(guide=_guide("./b", ahead=True))
    places = {"./old": bert, "./b": berts[0]}
    job = _job(berts[1], places, loss, datasets=[texts(12), retrieval(12)])
    with open_session(
        job, work=tmp_path, store=tmp_path, machine=Machine(), progress=progress
    ) as session:
        assert len(session.tables) == 2
    assert (len(loaded), most_in_memory) == (3, 2)
    at_work = [note for note in dict.fromkeys(notes) if note.startswith("embedding by")]
    assert at_work == ["embedding by ./old", "embedding by ./b"]


def test_one_text_tells_nothing_of_spaces(
    bert: Path, berts: Sequence[Path], tmp_path: Path
) -> None:
    loss = EmbeddingDistillation(guide=_guide("./b"))
    one = {"datasets": [texts(1)], "sampler": (BatchShuffle(batch_size=PerDataset(default=1)),)}
    job = _job(berts[1], {"./old": bert, "./b": berts[0]}, loss, **one)
    found, _ = _teacher_vectors(job, tmp_path)
    assert np.allclose(found.norm(dim=-1), 1, atol=1e-6)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(bert: Path, berts: Sequence[Path], tmp_path: Path) -> None:
    """Also of two teachers with one tokenizer, whose ranks wait for each other twice with the same texts."""
    arguments = []
    for loss in (
        EmbeddingDistillation(guide=_guide("./b", ahead=True)),
        SimilarityDistillation(guide=_guide(ahead=True), temperature=0.2),
    ):
        options = FitOptions(
            dropout=False, learning_rate=1e-3, max_steps=3, logging_steps=1, adam_epsilon=1e-2
        )
        job = _job(
            berts[0],
            {"./old": bert, "./b": berts[1]},
            loss,
            backbone=ExactEncoder(),
            options=options,
            datasets=[texts(14)],
            sampler=(BatchShuffle(batch_size=PerDataset(default=7)),),
            seed=3,
        )
        arguments.append({f.name: getattr(job, f.name) for f in dataclasses.fields(job)})
    found = [
        ranked_fit.run(
            [
                Training(tmp_path / f"{ranks}-{number}", given, exact=True)
                for number, given in enumerate(arguments)
            ],
            tmp_path / f"{ranks}.pkl",
            ranks,
        )
        for ranks in (2, 1)
    ]
    for two, one in zip(*found, strict=True):
        assert len(two["losses"]) == 3
        assert two["losses"] == exactly(one["losses"], size=1.0)
