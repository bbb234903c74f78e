"""A guide reads the batches of a training through its own tokenizer, from a recipe to the loss."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    CheckpointError,
    DataError,
    Embeddings,
    Model,
    ModelRef,
    PerDataset,
    load_plugins,
)
from emberge.encoding import BatchEmbeddings, TextEmbedder
from emberge.ranks import SINGLE_RANK
from emberge.training import BatchPlan, FitOptions, GuideRequest
from emberge.training.batch_loss import Objective, compute_batch_loss
from emberge.training.batch_texts import TextSampling, draw_batch
from emberge.training.example_table import build_tables
from emberge_encoder import TextEncoder
from emberge_train import EmbeddingDistillation, Guide
from emberge_train.guides import GuideReader
from emberge_train.samplers.one_dataset_samplers import BatchShuffle
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.json_files import edit
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.tolerance import assert_same_pass
from tests.support.training_data import retrieval

RECIPE = """
steps:
  guided:
    train:
      model: ./base
      data: {path: find.jsonl, task: retrieval}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: %s
      learning_rate: 0.01
      dropout: false
      max_steps: 6
"""


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another architecture, another size, prompts of its own."""
    folder = tiny.checkpoint(
        tmp_path_factory.mktemp("guide") / "guide", "xlm-roberta", seed=5, hidden_size=16
    )
    prompts = {"query": "question ", "document": "answer "}
    edit(folder, "config_sentence_transformers.json", prompts=prompts)
    return folder


@pytest.fixture
def place(bert: Path, guide: Path, tmp_path: Path) -> Path:
    (tmp_path / "base").symlink_to(bert)
    (tmp_path / "guide").symlink_to(guide)
    rows = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval(24).rows]
    (tmp_path / "find.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def _trained(place: Path, loss: str, out: str) -> dict[str, torch.Tensor]:
    made = run_checked(place, RECIPE % loss, load_plugins(), out)["guided"]
    return load_file(made / "model.safetensors")


def test_a_guide_that_cannot_be_read_is_said_by_check(place: Path) -> None:
    modules = place / "bad"
    modules.mkdir()
    (modules / "modules.json").write_text('[{"name": "0", "type": "far.away.Model", "path": ""}]')
    text = RECIPE % "{embedding_distillation: {guide: {model: ./bad}}}"
    found = find_faults(place, text, load_plugins(block=()))
    assert re.search("guide: .*remote code", found)


def _options() -> FitOptions:
    return FitOptions(hard_negatives=2)


def _seen(
    bert: Path, guide: Model, store: Path, losses: Any, *, again: bool = False
) -> tuple[Embeddings, Any]:
    """A batch as the loss sees it, and the rows that it is of."""
    data = retrieval(12)
    student = TextEncoder().load(bert, device="cpu", dtype="float32")
    tables = build_tables([data], student, _options(), store, lambda *_: None)
    reader = GuideReader(PerDataset(default=losses), lambda _: guide, TextEncoder())
    request = GuideRequest([data], "cpu", store, again, SINGLE_RANK, lambda *_: None)
    found = {
        name: dataclasses.replace(tables[name], guide=read)
        for name, read in reader(request).items()
    }
    sampler = (BatchShuffle(batch_size=PerDataset(default=6)),)
    plan = BatchPlan(
        {data.info: range(12)}, sampler, seed=1, epochs=1.0, max_steps=None, negatives=PerDataset()
    )
    batch = plan[0]
    drawn = draw_batch(batch, found, TextSampling(1, 2, 1), unique=True)
    caught: list[Embeddings] = []

    class Catch(Objective):
        def sum_losses(self, dataset: str, embeddings: Embeddings) -> torch.Tensor:
            caught.append(embeddings)
            return embeddings.anchor.sum()

    catch = Catch(PerDataset(default=losses), [data.info])
    compute_batch_loss(drawn, BatchEmbeddings(torch.randn(len(drawn.texts), 32)), catch)
    return caught[0], (data, drawn, found[data.info.name])


@pytest.mark.parametrize("again", [False, True])
def test_the_guide_sees_the_batchs_own_texts(
    bert: Path, guide: Path, tmp_path: Path, again: bool
) -> None:
    losses = (
        EmbeddingDistillation(guide=Guide(model=ModelRef("./guide"), backbone=TextEncoder())),
    )
    model = Model("guide", guide, "")
    batch, (data, drawn, table) = _seen(bert, model, tmp_path, losses, again=again)
    assert (tmp_path / "embeddings").exists() == again
    assert batch.guide is not None
    assert not batch.guide.anchor.requires_grad
    embedder = TextEmbedder(TextEncoder().load(guide, device="cpu", dtype="float32"))
    (part,) = drawn.parts
    for place, row in enumerate(part.planned.rows):
        example = data[int(row)]
        expected = embedder.embed([example.anchor], prompt="question ")
        assert_same_pass(batch.guide.anchor[place], expected[0], guide)
        texts = [*example.positives, *example.negatives]
        near = embedder.embed(texts, prompt="answer ")
        for slot, entry in enumerate(part.entries[place, 1:]):
            told = batch.guide.candidates[place, slot].numpy()
            if entry < 0:
                assert not told.any()
                assert not batch.valid[place, slot]
            else:
                own = int(entry - table.starts[row]) - 1
                assert_same_pass(told, near[own], guide)


def test_two_guides_of_one_dataset_are_refused(bert: Path, guide: Path, tmp_path: Path) -> None:
    losses = tuple(
        EmbeddingDistillation(guide=Guide(model=ModelRef(name), backbone=TextEncoder()))
        for name in ("./a", "./b")
    )
    with pytest.raises(DataError, match="dataset 'find': its losses have different guides"):
        _seen(bert, Model("guide", guide, ""), tmp_path, losses)


def test_an_adapter_is_no_guide(bert: Path, guide: Path, tmp_path: Path) -> None:
    """Else the base alone would guide, whoever asks for the job: a training, a study, a held-out loss."""
    losses = (
        EmbeddingDistillation(guide=Guide(model=ModelRef("./guide"), backbone=TextEncoder())),
    )
    adapted = Model("guide+adapter", guide, "", adapter=tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"guide\+adapter: .*merge it first"):
        _seen(bert, adapted, tmp_path, losses)


def test_a_guide_changes_what_a_recipe_trains_and_embeds_texts_that_come_again_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    embed = TextEmbedder.embed_tokens

    def counted(self: TextEmbedder, texts: Any) -> Any:
        calls.append(len(texts))
        return embed(self, texts)

    monkeypatch.setattr(TextEmbedder, "embed_tokens", counted)
    plain = _trained(place, "{infonce: {temperature: 0.1}}", "plain")
    assert calls == []
    guided = "[{infonce: {temperature: 0.1}}, {embedding_distillation: {guide: {model: ./guide}}}]"
    guided += "\n      backbone: {text_encoder: {dense: 16}}"
    first = _trained(place, guided, "first")
    texts = 2 * 24
    assert calls == [texts]
    again = _trained(place, guided, "again")
    assert calls == [texts, texts]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], plain[name]) for name in first)
    assert list((place / "first").rglob("embeddings"))
