from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, CheckpointError, DataEntry, DataRef, Model, ModelRef, PerDataset
from emberge.contracts import UsedRows
from emberge_boom import Bagging
from emberge_encoder import TextEncoder
from emberge_train.losses.cosent import CoSENT
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.matryoshka import Matryoshka
from emberge_train.losses.token_losses import MLM
from emberge_train.samplers.one_dataset_samplers import BatchShuffle
from emberge_train.train_step import Train
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.glance import Glance
from tests.support.training_data import retrieval, similarity, texts


def _room(root: Path, base: Path, *, adapter: Path | None = None, **more: Any) -> Bench:
    model = Model("tiny", base, "abc", adapter=adapter)
    return Bench(root, id="run", many={"./tiny": [model]}, **more)


class Look(Glance):
    """A check's side, where every model is one folder."""

    deep = True

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.base = base

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path:
        return self.base


@pytest.fixture
def data(tmp_path: Path) -> tuple[DataEntry, ...]:
    found = []
    for made, task in ((retrieval(), "retrieval"), (similarity(), "sts")):
        path = tmp_path / f"{made.info.name}.jsonl.gz"
        with gzip.open(path, "wt") as file:
            for example in made.rows:
                row: dict[str, Any] = {"query": example.anchor, "pos": list(example.positives)}
                if example.negatives:
                    row["neg"] = list(example.negatives)
                if example.positive_scores:
                    row["pos_scores"] = list(example.positive_scores)
                file.write(json.dumps(row) + "\n")
        found.append(DataEntry(path=DataRef(str(path)), task=task))  # type: ignore[arg-type]
    return tuple(found)


def _step(data: tuple[DataEntry, ...], **more: Any) -> Train:
    given: dict[str, Any] = {
        "model": ModelRef("./tiny"),
        "data": data,
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "loss": PerDataset(default=(InfoNCE(),), by_task={"sts": (CoSENT(),)}),
        "backbone": TextEncoder(),
        "learning_rate": 1e-3,
    }
    return Train(**{**given, **more})


def test_the_result_has_a_model_checkpoints_and_the_used_rows(
    data: tuple[DataEntry, ...], bert: Path, tmp_path: Path
) -> None:
    room = _room(tmp_path, bert, seed=4)
    artifact = _step(data, max_steps=6, save_steps=3, keep_last=1).run(room)
    assert isinstance(artifact, Artifact)
    assert (artifact.kind, artifact.size, artifact.parents) == ("model", 64, ("tiny",))
    details = artifact.details
    assert details.datasets["alike"] == UsedRows(task="sts", rows=24, of=24)
    assert (artifact.base.name, details.seed, details.steps) == ("tiny", 4, 6)
    assert details.checkpoints == ["checkpoints/step-6"]
    assert SentenceTransformer(str(room.folder), device="cpu").encode("a").shape == (32,)
    assert SentenceTransformer(str(room.folder / "checkpoints/step-6"), device="cpu")
    assert "loss" in room.metrics


def test_the_rows_of_a_bag_are_counted(
    data: tuple[DataEntry, ...], bert: Path, tmp_path: Path
) -> None:
    sampler = (Bagging(ratio=0.5), BatchShuffle(batch_size=PerDataset(default=4)))
    room = _room(tmp_path, bert)
    lengths = PerDataset[int | None](default=16)
    artifact = _step(data, sampler=sampler, max_steps=2, max_length=lengths).run(room)
    assert artifact.size == 32
    assert artifact.details.loss == {"default": ["infonce"], "by_task": {"sts": ["cosent"]}}
    assert artifact.details.max_length == 16
    assert artifact.details.sampler == [
        {"bagging": {"ratio": 0.5}},
        {"batch_shuffle": {"batch_size": 4}},
    ]
    used = {name: (facts.rows, facts.of) for name, facts in artifact.details.datasets.items()}
    assert used == {"find": (20, 40), "alike": (12, 24)}


def test_what_comes_before_the_first_step_is_told(
    data: tuple[DataEntry, ...], bert: Path, tmp_path: Path
) -> None:
    room = _room(tmp_path, bert)
    _step(data, max_steps=2).run(room)
    first_step = next(place for place, told in enumerate(room.told) if told[1] == 2)
    phases = [note for _, total, _, note in room.told[:first_step] if total == 0]
    assert phases == [
        "loading rows",
        "loading the model",
        "tokenising",
        "measuring the first step",
    ]
    assert room.told[0][3] == "loading rows"


def _check(step: Train, room: Glance) -> list[str]:
    return [str(problem) for problem in step.check(room)]


def test_check_shows_what_was_understood(
    data: tuple[DataEntry, ...], bert: Path, tmp_path: Path
) -> None:
    room = Look(bert)
    sampler = (Bagging(ratio=0.5), BatchShuffle(batch_size=PerDataset(default=4)))
    assert _check(_step(data, sampler=sampler, epochs=3, keep_last=2), room) == []
    assert room.expectations[-1].checkpoints == 2
    (shown,) = (lines for title, lines in room.notes.items() if title.startswith("find"))
    assert any(line.startswith("anchor: find") for line in shown)


def test_check_names_every_fault_and_its_place(
    data: tuple[DataEntry, ...], bert: Path, tmp_path: Path
) -> None:
    room = Look(bert)
    losses: Any = PerDataset(by_task={"sts": (CoSENT(),)})
    (problem,) = _check(_step(data, loss=losses), room)
    assert problem.startswith("loss: dataset 'find' has no loss for its task retrieval")
    (problem,) = _check(_step(data, loss=PerDataset(default=(CoSENT(),))), room)
    assert problem.startswith("loss: loss CoSENT needs scores, which dataset 'find'")
    (problem,) = _check(_step(data, sampler=(Bagging(ratio=0.5),)), room)
    assert problem.startswith("sampler: Bagging only selects; end the chain")
    both = _check(
        _step(data, sampler=(Bagging(ratio=0.5),), loss=PerDataset(default=(CoSENT(),))), room
    )
    assert [problem.partition(":")[0] for problem in both] == ["sampler", "loss"]
    losses = PerDataset(default=(InfoNCE(),), by_dataset={"fnd": (CoSENT(),)})
    (problem,) = _check(_step(data, loss=losses), room)
    assert problem.startswith("loss: loss: by_dataset names 'fnd', which is no dataset")
    length = PerDataset(by_dataset={"alik": 8})
    (problem,) = _check(_step(data, max_length=length), room)
    assert problem.startswith("max_length: max_length: by_dataset names 'alik'")
    sizes = (BatchShuffle(batch_size=PerDataset(default=8, by_dataset={"alik": 4})),)
    (problem,) = _check(_step(data, sampler=sizes), room)
    assert problem.startswith("sampler: batch_size: by_dataset names 'alik'")
    (problem,) = _check(_step(data, model=ModelRef("me/model+./adapter")), room)
    assert "not an adapter" in problem
    (problem,) = _check(_step(()), room)
    assert problem == "data: there is no data to train on"
    (problem,) = _check(_step(data), Look(tmp_path))
    assert problem.startswith("backbone:")
    (tmp_path / "find.jsonl.gz").write_bytes(gzip.compress(b'{"query": 3}\n'))
    assert any("find.jsonl.gz:1" in problem for problem in _check(_step(data), room))


def test_check_names_sizes_that_the_models_embeddings_do_not_have(
    data: tuple[DataEntry, ...], bert: Path, tmp_path: Path
) -> None:
    room = Look(bert)
    width = TextEncoder().describe(bert).dimension
    assert width is not None
    fits, over = (Matryoshka(loss=(InfoNCE(),), dims=(dims, 4)) for dims in (width, width + 1))
    similar = {"sts": (CoSENT(),)}
    assert _check(_step(data, loss=PerDataset(default=(fits,), by_task=similar)), room) == []
    (problem,) = _check(_step(data, loss=PerDataset(default=(over,), by_task=similar)), room)
    assert problem.startswith("loss:")
    assert str(width + 1) in problem
    assert str(width) in problem


def test_an_adapter_is_refused(data: tuple[DataEntry, ...], bert: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not an adapter"):
        _step(data).run(_room(tmp_path, bert, adapter=tmp_path))


@pytest.fixture
def read(tmp_path: Path) -> DataEntry:
    path = tmp_path / "read.jsonl"
    rows = [{"text": example.anchor} for example in texts(20).rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataEntry(path=DataRef(str(path)))


def test_a_check_shows_single_texts(
    data: tuple[DataEntry, ...], read: DataEntry, tmp_path: Path
) -> None:
    model = tiny.transformer(tmp_path / "m", "AutoModelForMaskedLM")
    room = Look(model)
    losses: Any = PerDataset(
        default=(InfoNCE(),), by_task={"sts": (CoSENT(),), "text": (MLM(share=0.2),)}
    )
    # More than there are texts, and fewer than their windows are.
    sampler = (BatchShuffle(batch_size=PerDataset(default=8, by_dataset={"read": 24})),)
    step = _step((*data, read), loss=losses, sampler=sampler, backbone=TextEncoder(pooling="mean"))
    assert _check(step, room) == []
    (shown,) = (lines for title, lines in room.notes.items() if title.startswith("read"))
    assert shown[0] == "columns: text = text"
    assert shown[1].startswith("text: ")
