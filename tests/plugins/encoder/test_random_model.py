"""A language model begins with random weights and a tokenizer of its data, and encodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from emberge import check_recipe, load_plugins, load_recipe, run_recipe
from emberge_encoder import TextEncoder

from tests.support.training_data import texts

CONFIG = {
    **{"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"max_position_embeddings": 64, "tie_word_embeddings": True},
}


def _run(root: Path, steps: dict[str, Any], **more: Any) -> Path:
    data = texts(40)
    lines = [json.dumps({"text": data[row].anchor}) for row in range(len(data))]
    root.mkdir(parents=True, exist_ok=True)
    (root / "texts.jsonl").write_text("\n".join(lines))
    path = root / "recipe.yaml"
    path.write_text(json.dumps({"seed": 3, "steps": steps, **more}))
    plugins = load_plugins()
    recipe = load_recipe(path, plugins)
    problems = check_recipe(recipe, plugins).errors
    assert not problems
    run_recipe(recipe, root / "out", plugins, quiet=True)
    return root / "out"


def _start(**changes: Any) -> dict[str, Any]:
    data = {"path": "texts.jsonl", "task": "text"}
    return {"random_model": {"config": CONFIG, "data": data, "vocabulary": 320, **changes}}


def test_a_tokenizer_of_the_data_adds_nothing_to_a_text(tmp_path: Path) -> None:
    folder = _run(tmp_path, {"start": _start()}) / "start"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.mask_token == "<|mask|>"
    assert tokenizer.model_max_length == 64
    text = "the list of näive files\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.all_special_ids)
    encoder = TextEncoder().load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    assert encoder.dimension == CONFIG["hidden_size"]


def test_one_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two, other = (
        _run(tmp_path / name, {"start": _start(seed=seed)}) / "start"
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    )
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    assert (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("changes", "option", "fix"),
    [
        ({"config": {**CONFIG, "hiden_size": 8}}, "config", "did you mean 'hidden_size'"),
        ({"config": {**CONFIG, "model_type": "qwen33"}}, "config", "did you mean 'qwen3'"),
        ({"config": {**CONFIG, "hidden_act": "no"}}, "config", "no"),
        ({"config": {"model_type": "clip"}}, "config", "no language model"),
    ],
)
def test_what_cannot_be_built_is_refused_before_work(
    changes: dict[str, Any], option: str, fix: str, tmp_path: Path
) -> None:
    lines = json.dumps({"steps": {"start": _start(**changes)}}, indent=1)
    (tmp_path / "texts.jsonl").write_text('{"text": "a list"}\n')
    path = tmp_path / "recipe.yaml"
    path.write_text(lines)
    plugins = load_plugins()
    (problem,) = check_recipe(load_recipe(path, plugins), plugins).errors
    line = next(i for i, text in enumerate(lines.splitlines(), 1) if f'"{option}"' in text)
    assert problem.where == f"{path}:{line}"
    assert fix in problem.message
