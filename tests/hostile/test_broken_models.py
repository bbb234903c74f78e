"""Models of the right form that nothing could open or read: refused before any work, with file and remedy."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Stage, load_plugins, load_recipe
from emberge.errors import EmbergeError
from emberge.merging import CopyJob, MergeInput, build_checkpoint
from emberge.model_folder import Checkpoint, TokenizerFiles
from emberge.recipes import check_recipe
from emberge.tensor_files import FileSource, TensorReader
from emberge_encoder import Layout, load_tokenizer
from emberge_merge import SignConsensus, Slerp, Trim
from safetensors.torch import load_file, save_file

from tests.support.json_files import changing, edit
from tests.support.merges import merge_models
from tests.support.whole import merge, plan, problems


@pytest.fixture
def model(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "model"))


def write(name: str, content: Any) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(json.dumps(content)) and None


def change(name: str, **changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder, name, **changes)


def remove(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        place = folder / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return change


def change_module(number: int, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with changing(folder / "modules.json") as listed:
            listed[number] |= changes

    return change


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), r"has no config\.json"),
    "config of another kind": (write("config.json", [1]), r"config\.json: must be a JSON object"),
    "config of nothing": (write("config.json", {}), r"config\.json: has no model_type"),
    "vocabulary": (change("config.json", vocab_size=7), r"vocab_size is 7, and '.*' has \d+ rows"),
    "layers": (change("config.json", num_hidden_layers=4), r"has 4 layers, .* have 3"),
    "no modules": (write("modules.json", []), r"modules\.json: is no list of modules"),
    "no pooling": (remove("1_Pooling"), r"modules\.json: the folder '1_Pooling' .* missing"),
    "pooling without config": (remove("1_Pooling/config.json"), r"has no 1_Pooling/config\.json"),
    "module of a stranger": (
        change_module(1, type="custom_st.Pooling"),
        r"modules\.json: module 'custom_st\.Pooling' is code",
    ),
    "a module without a name": (change_module(1, name=None), r"a module lacks a name"),
    "no words": (remove("tokenizer.json"), r"tokenizer_config\.json and no tokenizer\.json"),
    "tokenizer": (write("tokenizer.json", [1]), r"tokenizer\.json: must be a JSON object"),
    "tokenizer without a model": (write("tokenizer.json", {}), r"tokenizer\.json: is no tokenizer"),
    "tokenizer's normalizer": (
        change("tokenizer.json", normalizer={"type": "Gone"}),
        r"tokenizer\.json: is no tokenizer",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_first_model_that_nothing_could_open_is_refused_before_any_work(
    case: str, model: Path, bert: Path, tmp_path: Path
) -> None:
    breaking, message = BROKEN[case]
    breaking(model)
    with pytest.raises(EmbergeError, match=message):
        merge(tmp_path / "out", model, bert)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


OPENING: dict[str, str] = {
    "train": "{model: MODEL, data: {path: DATA}, loss: infonce, sampler: batch_shuffle, max_steps: 1}",
    "evaluate": "{models: [MODEL], evaluators: {mean_loss: {}}}",
    "as_encoder": "{model: MODEL}",
    "upcycle": "{model: MODEL}",
}


@pytest.mark.parametrize("step", OPENING)
def test_a_step_that_opens_a_model_checks_that_it_can_be_opened(
    step: str, model: Path, tmp_path: Path
) -> None:
    breaking, message = BROKEN["vocabulary"]
    breaking(model)
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps({"anchor": "a question", "positive": "an answer"}) + "\n")
    options = OPENING[step].replace("MODEL", str(model)).replace("DATA", str(data))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"steps:\n  one:\n    {step}: {options}\n")
    plugins = load_plugins()
    report = check_recipe(load_recipe(recipe, plugins=plugins), plugins)
    assert [p.where for p in report.errors if re.search(message, p.message)] == [f"{recipe}:3"]


def test_a_template_is_checked_before_a_folder_is_built_of_it(model: Path, tmp_path: Path) -> None:
    breaking, message = BROKEN["no pooling"]
    specs = Checkpoint(model).specs
    breaking(model)
    with TensorReader() as reader:
        jobs = [CopyJob(spec, FileSource("a", spec, reader)) for spec in specs.values()]
        with pytest.raises(EmbergeError, match=message):
            build_checkpoint(jobs, tmp_path / "out", template=Checkpoint(model), key="")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_is_chosen_is_checked_too(model: Path, bert: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: is no tokenizer" in problems(bert, bert, tokenizer=model)


def test_a_tokenizer_of_bytes_has_no_file_of_words(model: Path) -> None:
    remove("tokenizer.json")(model)
    (fault,) = TokenizerFiles(model).describe_problems()
    assert "has tokenizer_config.json and no tokenizer.json" in fault
    change("tokenizer_config.json", tokenizer_class="ByT5Tokenizer")(model)
    assert list(TokenizerFiles(model).describe_problems()) == []
    (model / "vocab.txt").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "vocab.txt: a pointer of Git LFS" in "".join(TokenizerFiles(model).describe_problems())


def test_a_tokenizer_is_read_again_where_another_file_took_its_place(model: Path) -> None:
    path = model / "tokenizer.json"
    assert list(TokenizerFiles(model).describe_problems()) == []
    status = path.stat()
    other = path.with_name("other")
    other.write_text("{}".ljust(status.st_size))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert "tokenizer.json: is no tokenizer" in "".join(TokenizerFiles(model).describe_problems())


def test_other_models_may_lack_what_the_template_gives(model: Path, bert: Path) -> None:
    BROKEN["no pooling"][0](model)
    assert "1_Pooling" not in problems(bert, model)


@pytest.mark.parametrize(
    ("case", "is_read"), [("tokenizer without a model", True), ("tokenizer's normalizer", False)]
)
def test_of_other_models_tokenizers_the_tokens_are_read(
    case: str, is_read: bool, model: Path, bert: Path
) -> None:
    BROKEN[case][0](model)
    assert ("model/tokenizer" in problems(bert, model)) == is_read


def test_what_classes_round_up_or_store_beside_is_no_fault(model: Path, bert: Path) -> None:
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    edit(model, "config.json", vocab_size=rows - 3, pad_vocab_size_multiple=rows)
    assert not plan(model, bert).problems
    edit(model, "config.json", num_hidden_layers=1)
    assert "layers" not in problems(model, bert)
    shutil.rmtree(model / "2_Normalize", ignore_errors=True)
    assert not plan(model, bert).problems


@pytest.mark.parametrize(
    ("value", "dtype", "kernels"),
    [
        (float("nan"), torch.float32, "never"),
        (2.0**64, torch.float32, ""),
        (-(2.0**64), torch.float32, "never"),
        (float("-inf"), torch.bfloat16, ""),
    ],
)
def test_a_weight_that_no_layer_can_work_with_is_named(
    value: float,
    dtype: torch.dtype,
    kernels: str,
    model: Path,
    bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMBERGE_KERNELS", kernels)
    state = {name: one.to(dtype) for name, one in load_file(model / "model.safetensors").items()}
    name = "encoder.layer.1.output.dense.weight"
    state[name][3, 4] = value
    save_file(state, model / "model.safetensors")
    with pytest.raises(EmbergeError, match=f"{name}: 'model' has values"):
        merge(tmp_path / "out", model, bert)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kernels", ["", "never"])
def test_the_largest_weight_that_float32_can_square_is_merged(
    kernels: str, model: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERGE_KERNELS", kernels)
    state = load_file(model / "model.safetensors")
    state["encoder.layer.1.output.dense.weight"][3, 4] = largest = 2.0**64 * (1 - 2.0**-24)
    save_file(state, model / "model.safetensors")
    merge(tmp_path / "out", model, Path(shutil.copytree(model, tmp_path / "same")))
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert float(merged["encoder.layer.1.output.dense.weight"][3, 4]) == largest


# ── tokenizers ──────────────────────────────────────────────────────────────────────────────────


def without_tokenizer(folder: Path) -> Path:
    """Remove all files of words; transformers then makes a tokenizer of its special tokens."""
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    return folder


def test_no_tokenizer_is_made_up(model: Path) -> None:
    with pytest.raises(EmbergeError, match="has no tokenizer"):
        load_tokenizer(without_tokenizer(model))
    (model / "tokenizer_config.json").unlink()
    with pytest.raises(EmbergeError, match="has no tokenizer"):
        load_tokenizer(model)


def test_a_tokenizer_of_a_larger_model_is_refused(model: Path) -> None:
    edit(model, "config.json", vocab_size=20)
    with pytest.raises(EmbergeError, match=r"up to id \d+, and the model has 20 rows"):
        load_tokenizer(model)


def test_added_tokens_may_be_without_a_row(model: Path) -> None:
    content = json.loads((model / "tokenizer.json").read_text())
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    added = {"id": rows, "content": "<image>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({**added, **flags})
    (model / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(model).convert_tokens_to_ids("<image>") == rows


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("1_Pooling/config.json", "pooling_mode", "median"),
        ("config_sentence_transformers.json", "prompts", {"query": 3}),
        ("config_sentence_transformers.json", "default_prompt_name", "gone"),
    ],
)
def test_a_setting_that_no_library_understands_is_refused(
    name: str, key: str, value: Any, model: Path
) -> None:
    edit(model, name, **{key: value})
    with pytest.raises(EmbergeError, match=rf"{name}: {key}"):
        Layout.read(model)


# ── tensors without numbers ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(0,), (4, 0)])
@pytest.mark.parametrize("chain", [(Slerp(),), (Trim(), SignConsensus())])
def test_tensors_without_numbers_are_copied(
    shape: tuple[int, ...], chain: tuple[Stage, ...], tmp_path: Path
) -> None:
    folders = []
    for number, name in enumerate(("base", "a", "b")):
        (tmp_path / name).mkdir()
        state = {"v": torch.eye(3) + number * torch.ones(3), "w": torch.empty(shape)}
        save_file(state, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text('{"model_type": "acme"}')
        folders.append(tmp_path / name)
    needed = chain[0].base_policy == "required"
    base = MergeInput("base", folders[0]) if needed else None
    models = [MergeInput(one.name, one) for one in folders[1:]]
    merge_models(models, strategy=chain, base=base, out=tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["w"].shape == shape
