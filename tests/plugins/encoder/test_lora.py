"""Adapters: trained by a recipe, merged as they are, and what peft makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    CheckpointError,
    Encoder,
    Machine,
    Plugins,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.encoding import TextEmbedder
from emberge.merging import MergeInput
from emberge.results import read_artifact
from emberge_encoder.lora import Lora
from emberge_encoder.text_encoder import TextEncoder
from emberge_merge import Passthrough
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn

from tests.support import tiny
from tests.support.bench import write_catalogue
from tests.support.merges import merge_models
from tests.support.peft_adapters import adapted
from tests.support.result_folders import folders
from tests.support.tolerance import assert_near, assert_same_pass
from tests.support.training_data import retrieval

TEXTS = ["find a file", "Sort a LIST of numbers", "weather", "the table of the bank"]
KINDS: dict[str, Lora] = {
    "plain": Lora(rank=2),
    "scaled": Lora(rank=3, alpha=7),
    "embeddings too": Lora(rank=2, targets=("query", "word_embeddings")),
}


def _load(backbone: TextEncoder, folder: Path) -> Encoder:
    return backbone.load(folder, device="cpu", dtype="float32")


def _trained(lora: Lora, folder: Path) -> Encoder:
    """An encoder whose factors have moved from where they start."""
    encoder = _load(TextEncoder(lora=lora), folder)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder


def _embedded(encoder: Encoder) -> Any:
    return TextEmbedder(encoder).embed(TEXTS)


def _plain(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_what_was_trained(kind: str, bert: Path, tmp_path: Path) -> None:
    """By peft, by a merge of base and adapter, and folded: the encoder's own embeddings."""
    encoder = _trained(KINDS[kind], bert)
    ours = _embedded(encoder)
    assert np.abs(ours - _embedded(_load(TextEncoder(), bert))).max() > 1e-3
    encoder.save(tmp_path / "adapter")
    peft = adapted(bert, tmp_path / "adapter").base_model.model
    trunk: Any = encoder.module.get_submodule("trunk")
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    with torch.no_grad():
        assert_same_pass(trunk.eval()(ids)[0], peft(ids)[0], bert)
    one = [MergeInput("one", bert, adapter=tmp_path / "adapter")]
    merge_models(one, strategy=[Passthrough()], out=tmp_path / "merged")
    assert_same_pass(_plain(tmp_path / "merged"), ours, bert)


def test_folded_it_is_a_whole_model(bert: Path, tmp_path: Path) -> None:
    lora = Lora(rank=2, fold=True)
    encoder = _trained(lora, bert)
    before = _embedded(encoder)
    (tmp_path / "whole").mkdir()
    encoder.save(tmp_path / "whole")
    assert_same_pass(_plain(tmp_path / "whole"), before, bert)
    assert np.array_equal(_embedded(encoder), before), "saving must not touch what is trained"
    own, source = (load_file(f / "model.safetensors") for f in (tmp_path / "whole", bert))
    assert set(own) == set(source)
    assert not TextEncoder(lora=lora).leaves_adapter


def test_only_factors_are_trained_and_they_begin_as_nothing(bert: Path) -> None:
    encoder = _load(TextEncoder(lora=Lora(rank=2)), bert)
    moved = {n for n, p in encoder.module.named_parameters() if p.requires_grad}
    assert moved
    assert all(".lora_" in name for name in moved)
    linear = [m for m in _load(TextEncoder(), bert).module.modules() if isinstance(m, nn.Linear)]
    assert len(moved) == 2 * len(linear)
    assert_same_pass(_embedded(encoder), _embedded(_load(TextEncoder(), bert)), bert)


def test_a_vision_tower_as_deep_as_the_text_is_left_alone(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", "qwen3-vl")
    encoder = _load(TextEncoder(lora=Lora(rank=2)), source)
    moved = {n for n, p in encoder.module.named_parameters() if p.requires_grad}
    assert {n.partition(".layers.")[0] for n in moved} == {"trunk.language_model"}
    assert len(moved) == 2 * 7 * 3, "factors of q, k, v, o, gate, up and down in each layer"


def test_where_it_begins_is_a_matter_of_its_seed_alone(bert: Path) -> None:
    def start(seed: int) -> torch.Tensor:
        torch.manual_seed(torch.seed())
        module = _load(TextEncoder(lora=Lora(rank=2, seed=seed)), bert).module
        return torch.cat([p.flatten() for n, p in module.named_parameters() if "lora_A" in n])

    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))


def test_an_adapter_says_what_it_lies_on(bert: Path, berts: list[Path], tmp_path: Path) -> None:
    encoder = _trained(Lora(rank=2, targets=("query",), dropout=0.1), bert)
    encoder.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 2, 0.1)
    assert config["base_model_name_or_path"] == bert.name
    assert all(name.endswith(".query") for name in config["target_modules"])
    other = [MergeInput("one", berts[0], adapter=tmp_path)]
    with pytest.raises(CheckpointError, match="whose weights differ"):
        merge_models(other, strategy=[Passthrough()], out=tmp_path / "merged")


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (Lora(targets=("qery",)), "has no target 'qery'; did you mean 'query'?"),
        (Lora(targets=("LayerNorm",)), "takes no adapter"),
    ],
)
def test_targets_that_cannot_be_are_refused(lora: Lora, message: str, bert: Path) -> None:
    with pytest.raises(CheckpointError, match=message.replace("?", r"\?")):
        _load(TextEncoder(lora=lora), bert)


@pytest.mark.parametrize(
    ("options", "bare"),
    [({"pooling": "cls"}, False), ({"pooling": "mean"}, True), ({"include_prompt": False}, False)],
)
def test_what_an_adapter_cannot_hold_is_refused_before_training(
    options: dict[str, Any], bare: bool, tmp_path: Path
) -> None:
    folder = tiny.checkpoint(tmp_path / "m", sentence_transformer=not bare)
    (fault,) = TextEncoder(lora=Lora(), **options).describe(folder).problems
    assert f"its {next(iter(options))} would be lost" in fault
    assert "fold: true" in fault
    assert not TextEncoder(lora=Lora(fold=True), **options).describe(folder).problems


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


RECIPE = """
steps:
  members:
    foreach: {seed: [1, 2]}
    train:
      model: ./base
      data: {path: find.jsonl, task: retrieval}
      backbone: {text_encoder: {lora: {rank: 2, alpha: 4, targets: [query, dense]}}}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: infonce
      learning_rate: 0.01
      max_steps: 4
      save_steps: 2
      keep_last: 1
      seed: $seed
  soup:
    merge: {models: $members, strategy: linear}
  signs:
    merge: {models: $members, base: ./base, strategy: {ties: {density: 0.5}}}
  kept:
    merge: {models: $members.checkpoints, strategy: linear}
  scores:
    evaluate:
      models: [./base, $soup, $signs]
      evaluators: {mteb: {data: {path: sets/catalogue.yaml, only: [sts]}}}
"""


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    """A folder with a base, a file of pairs and something to score on."""
    (tmp_path / "base").symlink_to(bert)
    rows = [
        {"anchor": e.anchor, "positive": e.positives[0], "negative": "a bank"}
        for e in retrieval(24).rows
    ]
    (tmp_path / "find.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sets").mkdir()
    catalogue = write_catalogue(tmp_path / "sets")
    (tmp_path / "sets" / "catalogue.yaml").symlink_to(catalogue)
    return tmp_path


@pytest.mark.slow
def test_two_adapters_are_trained_merged_and_scored(
    place: Path, plugins: Plugins, bert: Path
) -> None:
    recipe = parse_recipe(RECIPE, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    made = folders(run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True))
    members = [made[f"members.seed={seed}"] for seed in (1, 2)]
    states = [load_file(member / "adapter_model.safetensors") for member in members]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    for member in members:
        assert not (member / "model.safetensors").exists()
        assert (member / "checkpoints/step-4/adapter_config.json").is_file()
        artifact = read_artifact(member)
        assert artifact is not None
        assert set(artifact.details["adapter"]["ranks"].values()) == {2}
        assert "by training" in (member / "README.md").read_text()
    peft = [adapted(bert, member).merge_and_unload().state_dict() for member in members]
    soup = load_file(made["soup"] / "model.safetensors")
    for name, tensor in peft[0].items():
        # Either is the base's and a product of rank 2.
        assert_near(soup[name], (tensor + peft[1][name]) / 2, addends=2 * (1 + 2) + 2, name=name)
    # The last states are the results themselves.
    kept = load_file(made["kept"] / "model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in soup.items())
    scores = json.loads((made["scores"] / "scores.json").read_text())["scores"]
    assert set(scores) == {"base", "soup", "signs"}
    assert all(0 < own["sts"] <= 1 for own in scores.values())
    signs = load_file(made["signs"] / "model.safetensors")
    assert any(not torch.equal(signs[name], tensor) for name, tensor in soup.items())
