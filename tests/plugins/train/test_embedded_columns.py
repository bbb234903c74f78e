"""Training of documents alone, near those of a guide: no anchors go through the model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Guide, Loss, Machine, Model, ModelRef, PerDataset, TokenisedText
from emberge.contracts import COLUMNS
from emberge.training import FitJob, FitOptions, Session, open_session
from emberge_encoder import TextEncoder
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.keep_space import KeepSpace
from emberge_train.samplers.batch_shuffle import BatchShuffle

from tests.support.training_data import retrieval

GUIDE = Guide(model=ModelRef("./old"))


@dataclass(frozen=True, kw_only=True)
class AllEmbedded(KeepSpace):
    """The same loss, which asks for every column."""

    @property
    def embeds(self) -> frozenset[str]:
        return COLUMNS


DOCUMENTS = KeepSpace(guide=GUIDE)
EVERY_COLUMN = AllEmbedded(guide=GUIDE)


@pytest.fixture
def job(bert: Path, berts: list[Path]) -> FitJob:
    return FitJob(
        backbone=TextEncoder(),
        checkpoint=berts[0],
        datasets=[retrieval(24)],
        sampler=(BatchShuffle(batch_size=PerDataset(default=8)),),
        losses=PerDataset(default=(DOCUMENTS,)),
        options=FitOptions(dropout=False, learning_rate=1e-3, epochs=1.0),
        guides=lambda _: Model("old", bert, "0"),
    )


def of(job: FitJob, *losses: Loss) -> FitJob:
    return replace(job, losses=PerDataset(default=losses))


@contextmanager
def opened(job: FitJob, work: Path) -> Iterator[Session]:
    with open_session(
        job, work=work, store=work, machine=Machine(), progress=lambda *_: None
    ) as session:
        yield session


def passed(
    job: FitJob, work: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], float, list[list[int]], set[tuple[int, ...]]]:
    """Gradients and loss of the first batch, the texts that its model read, and those of all anchors."""
    read: list[list[int]] = []
    with opened(job, work) as session:
        kind = type(session.encoder)
        collate = kind.collate

        def counted(self: Any, texts: Sequence[TokenisedText]) -> Any:
            if self is session.encoder:
                read.extend([int(i) for i in text.ids] for text in texts)
            return collate(self, texts)

        monkeypatch.setattr(kind, "collate", counted)
        loss = float(session.backward(session.plan[0]).loss)
        monkeypatch.undo()
        found = {
            name: one.grad.clone()
            for name, one in session.encoder.module.named_parameters()
            if one.grad is not None
        }
        anchors = {
            tuple(int(i) for i in table.sequences[int(table.entries[start])].ids)
            for table in session.tables.values()
            for start in table.starts[:-1]
        }
    return found, loss, read, anchors


def test_queries_do_not_go_through_it_where_documents_alone_are_kept(
    job: FitJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, value, read, anchors = passed(job, tmp_path / "few", monkeypatch)
    assert not {tuple(one) for one in read} & anchors
    every, other, texts, _ = passed(of(job, EVERY_COLUMN), tmp_path / "every", monkeypatch)
    assert len(texts) == len(read) + 8
    assert value == pytest.approx(other, abs=1e-6)
    for name, gradient in few.items():
        torch.testing.assert_close(gradient, every[name], rtol=1e-4, atol=1e-6)


def test_a_loss_beside_it_that_reads_queries_gets_them(
    job: FitJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = of(job, DOCUMENTS, InfoNCE(weight=0.5))
    _, value, read, _ = passed(both, tmp_path / "both", monkeypatch)
    _, _, texts, _ = passed(of(job, EVERY_COLUMN), tmp_path / "every", monkeypatch)
    assert len(read) == len(texts)
    assert value == value


def test_only_the_datasets_of_such_losses_are_spared(job: FitJob, tmp_path: Path) -> None:
    losses = PerDataset(default=(DOCUMENTS,), by_dataset={"other": (InfoNCE(),)})
    mixed = replace(job, datasets=[retrieval(8), retrieval(8, name="other")], losses=losses)
    with opened(mixed, tmp_path) as session:
        for batch in session.plan:
            (part,) = batch.parts
            drawn = session._draw_texts(batch, session.objective.embeds)
            spared = part.dataset == "find"
            assert (len(drawn.texts) < len(session.texts(batch))) == spared


@pytest.mark.slow
def test_the_guides_texts_are_stored_and_the_guide_leaves_memory(
    job: FitJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[Any]] = []
    load = TextEncoder.load

    def noted(self: TextEncoder, *args: Any, **more: Any) -> Any:
        encoder = load(self, *args, **more)
        loaded.append(weakref.ref(encoder.module))
        return encoder

    monkeypatch.setattr(TextEncoder, "load", noted)

    def alive(given: FitJob, name: str) -> int:
        loaded.clear()
        with opened(given, tmp_path / name):
            gc.collect()
            assert len(loaded) == 2  # the model and its guide
            return sum(one() is not None for one in loaded)

    assert alive(replace(job, options=replace(job.options, epochs=2.0)), "stored") == 1
    assert (tmp_path / "stored" / "embeddings").is_dir()
    assert alive(job, "beside") == 2  # each text is read once
    assert not (tmp_path / "beside" / "embeddings").exists()
