"""Queries that a model on this machine writes: the same text again, and none is written twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import DataRef, EmbergeError, ModelRef
from emberge_data.steps.generate.generate_step import GenerateQueries
from emberge_data.steps.generate.local_author import LocalAuthor, OpenAuthor
from emberge_data.steps.generate.model_reply import ModelReply

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.chat_server import queries_by_rule
from tests.support.decoders import decoder
from tests.support.glance import Glance
from tests.support.handbook import write_handbook

PROMPTS = ["find the file", "open the list and sort the first row of the table", "text"]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decoder(
        tmp_path_factory.mktemp("causal") / "m", "llama", head=True, max_position_embeddings=2048
    )


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny T5, which has an encoder and a decoder."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("t5") / "m"
    folder.mkdir()
    size = tiny.write_tokenizer(folder)
    ids = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0}
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=size, **sizes, **ids)
    model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value))
    model.save_pretrained(folder)
    return folder


def author(folder: Path, **options: Any) -> LocalAuthor:
    return LocalAuthor(model=ModelRef(str(folder)), **options)


@pytest.mark.parametrize("kind", ["causal", "translator"])
def test_a_model_writes_the_same_text_again_in_any_batch(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options = author(request.getfixturevalue(kind))
    with options.opened(Bench(tmp_path)) as model:  # type: ignore[arg-type]
        replies = model.write(PROMPTS)
        assert [len(reply.text) > 0 for reply in replies] == [True] * 3
        assert replies == model.write(PROMPTS)
        assert replies == [reply for prompt in PROMPTS for reply in model.write([prompt])]
        assert not [r for r, p in zip(replies, PROMPTS, strict=True) if r.text.startswith(p)]


def test_replies_are_kept_so_no_model_is_loaded_again(
    causal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def write(self: OpenAuthor, prompts: Sequence[str]) -> list[ModelReply]:
        sizes.append(len(prompts))
        return [ModelReply(queries_by_rule(prompt)) for prompt in prompts]

    monkeypatch.setattr(OpenAuthor, "write", write)
    folder = write_handbook(tmp_path / "docs", documents=4)
    by = author(causal)
    step = GenerateQueries(documents=DataRef(str(folder)), by=by, dev=0, test=0)
    bench = Bench(tmp_path / "run", id="generated")
    step.run(bench)
    assert sizes == [8, 4]
    rows = [json.loads(line) for line in (bench.folder / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    monkeypatch.setattr(OpenAuthor, "__init__", lambda *_: pytest.fail("the model is loaded again"))
    step.run(bench)


def test_a_model_that_writes_nonsense_ends_the_step(causal: Path, tmp_path: Path) -> None:
    folder = write_handbook(tmp_path / "docs", documents=2)
    by = author(causal)
    step = GenerateQueries(documents=DataRef(str(folder)), by=by, dev=0, test=0)
    with pytest.raises(EmbergeError, match="replies are of no use"):
        step.run(Bench(tmp_path / "run", id="generated"))


def test_a_model_that_does_not_write_is_found_by_the_check(tmp_path: Path) -> None:
    folder = write_handbook(tmp_path / "docs", documents=2)
    encoder = tiny.checkpoint(tmp_path / "encoder", "bert")
    odd = tiny.checkpoint(tmp_path / "odd", "bert")
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps({**config, "architectures": 5}))
    documents = DataRef(str(folder))
    step = GenerateQueries(documents=documents, by=author(encoder))
    problems = list(step.check(Glance()))
    assert [(p.where, p.severity) for p in problems] == [("by.model", "error")]
    assert "does not write text" in problems[0].message
    (problem,) = GenerateQueries(documents=documents, by=author(odd)).check(Glance())
    assert (problem.where, problem.severity) == ("by.model", "error")


def test_a_model_without_its_head_is_refused(tmp_path: Path) -> None:
    bare = decoder(tmp_path / "m", "llama")
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(EmbergeError, match="would be random"), author(bare).opened(Bench(tmp_path)):  # type: ignore[arg-type]
        pass
