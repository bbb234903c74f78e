"""Merges that come out as adapters, and fine-tunes made adapters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import EmbergeError, Plugins, check_recipe, parse_recipe, run_recipe
from emberge.results import read_artifact
from emberge_merge.adapters.adapter_writer import AdapterParts
from emberge_merge.adapters.low_rank import Truncation, factorise, factorise_product
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.peft_adapters import IDS, adapted, hidden, loaded, save_adapter
from tests.support.result_folders import artifact_of
from tests.support.tolerance import assert_near, assert_same_pass, gamma, near

LAYER = "encoder.layer.0.attention.self.query"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("base") / "bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three of different ranks, modules and scaling."""
    root = tmp_path_factory.mktemp("adapters")
    settings: list[dict[str, Any]] = [
        {"target_modules": ["query", "value", "word_embeddings"]},
        {"target_modules": ["query", "output.dense"], "use_rslora": True, "r": 2},
        {"target_modules": ["query", "value"], "alpha_pattern": {"value": 3}},
    ]
    return [
        save_adapter(root / f"a{seed}", base, seed=seed, **one) for seed, one in enumerate(settings)
    ]


@pytest.fixture
def place(base: Path, adapters: list[Path], tmp_path: Path) -> Path:
    """A folder for recipes, with the base and adapters a0, a1, a2 in it."""
    (tmp_path / "bert").symlink_to(base)
    for adapter in adapters:
        (tmp_path / adapter.name).symlink_to(adapter)
    return tmp_path


MODELS = "[{model: ./bert+./a0, weight: 0.5}, {model: ./bert+./a1, weight: 0.2}, ./bert+./a2]"


def run(place: Path, steps: str, plugins: Plugins) -> dict[str, Path]:
    recipe = parse_recipe(f"steps:\n{steps}", plugins, path=place / "recipe.yaml")
    return {k: Path(v) for k, v in run_recipe(recipe, place / "out", plugins, quiet=True).items()}


def adapter_of(folder: Path) -> Any:
    return artifact_of(folder).adapter


def test_adapters_side_by_side_are_the_exact_merge(
    place: Path, base: Path, plugins: Plugins
) -> None:
    made = run(
        place,
        f"  small: {{merge_adapters: {{models: {MODELS}}}}}\n"
        f"  whole: {{merge: {{models: {MODELS}, strategy: linear}}}}\n"
        "  again: {merge: {models: [$small], strategy: passthrough}}\n",
        plugins,
    )
    expected = hidden(loaded(made["whole"]))
    assert_same_pass(hidden(adapted(base, made["small"])), expected, base)
    assert_same_pass(hidden(loaded(made["again"])), expected, base)
    assert float((expected - hidden(loaded(base))).abs().max()) > 1e-3
    found = adapter_of(made["small"])
    assert found.ranks[LAYER] == 4 + 2 + 4
    assert found.ranks["embeddings.word_embeddings"] == 4
    assert found.ranks["encoder.layer.1.output.dense"] == 2
    assert set(found.errors.values()) == {0.0}


def test_an_adapter_of_a_class_with_a_head_becomes_one_of_the_backbone(
    tmp_path: Path, plugins: Plugins
) -> None:
    from transformers import AutoModelForCausalLM

    sizes = {"num_hidden_layers": 2, "tie_word_embeddings": False}
    base = tiny.transformer(tmp_path / "base", "AutoModelForCausalLM", "qwen3", **sizes)
    causal: dict[str, Any] = {"model": AutoModelForCausalLM, "task_type": "CAUSAL_LM"}
    save_adapter(tmp_path / "c", base, target_modules=["q_proj", "lm_head"], **causal)
    save_adapter(tmp_path / "bare", base, seed=1, target_modules=["q_proj"])
    models = "models: [./base+./c, ./base+./bare]"
    # A filter has names that the base stores.
    scale = "[{filter: model.layers, value: 0.25}, {value: 1}]"
    scaled = f"{models}, strategy: {{task_arithmetic: {{scale: {scale}}}}}"
    made = run(
        tmp_path,
        f"  small: {{merge_adapters: {{{scaled}}}}}\n"
        f"  whole: {{merge: {{{scaled}, base: ./base}}}}\n",
        plugins,
    )
    assert_same_pass(hidden(adapted(base, made["small"])), hidden(loaded(made["whole"])), base)
    kept = json.loads((made["small"] / "adapter_config.json").read_text())
    assert kept["task_type"] == "FEATURE_EXTRACTION"
    said = "\n".join(read_artifact(made["small"]).warnings)  # type: ignore[union-attr]
    assert "the head lm_head" in said
    text = f"steps:\n  m: {{merge_adapters: {{{models}}}}}\n"
    report = check_recipe(parse_recipe(text, plugins, path=tmp_path / "r.yaml"), plugins)
    assert any("'base+c' is an adapter of type CAUSAL_LM" in str(p) for p in report.problems)


def test_a_pooler_that_the_base_lacks_is_named_and_no_change(
    tmp_path: Path, plugins: Plugins
) -> None:
    base = tiny.transformer(tmp_path / "base", "AutoModelForMaskedLM", "xlm-roberta", seed=1)
    tuned = tiny.transformer(tmp_path / "tuned", architecture="xlm-roberta", seed=2)
    step = "extract_lora: {model: ./tuned, base: ./base, rank: 64}"
    folder = run(tmp_path, f"  x: {{{step}}}\n", plugins)["x"]
    assert not any("pooler" in name for name in load_file(folder / "adapter_model.safetensors"))
    assert "pooler" in "\n".join(read_artifact(folder).warnings)  # type: ignore[union-attr]
    assert_same_pass(hidden(adapted(base, folder)), hidden(loaded(tuned)), base)


def test_a_module_inside_one_that_is_kept_whole_cannot_be_adapted() -> None:
    names = frozenset({"a.weight", "a.b.weight"})
    factors: dict[str, Any] = {"a.b": None}
    with pytest.raises(EmbergeError, match=r"a\.b: the change cannot be an adapter's, as 'a' "):
        AdapterParts(names, factors=factors, changed_names={"a.weight"}).list_saved_modules()


def test_an_adapters_config_does_not_depend_on_the_order_of_threads() -> None:
    ranks = {"b": 2, "a": 1}
    factors = {name: factorise(torch.eye(rank), Truncation(2)) for name, rank in ranks.items()}
    assert AdapterParts(frozenset(), factors=factors)._build_config("base")["r"] == 1


@pytest.mark.parametrize("strategy", ["linear", "{ties: {density: 0.6}}", "multi_slerp"])
def test_a_rank_cuts_to_what_is_said(
    strategy: str, place: Path, base: Path, plugins: Plugins
) -> None:
    origin = "base: ./bert, " if "ties" in strategy else ""
    made = run(
        place,
        f"  small: {{merge_adapters: {{models: {MODELS}, strategy: {strategy}, rank: 3}}}}\n"
        f"  whole: {{merge: {{models: {MODELS}, {origin}strategy: {strategy}}}}}\n"
        "  again: {merge: {models: [$small], strategy: passthrough}}\n",
        plugins,
    )
    found = adapter_of(made["small"])
    whole, again, own = (
        load_file(folder / "model.safetensors") for folder in (made["whole"], made["again"], base)
    )
    assert max(found.ranks.values()) <= 3
    for name, tensor in whole.items():
        change = tensor.double() - own[name].double()
        if float(change.abs().max()) < 1e-6:  # no member changes it; averaging rounds
            assert torch.equal(again[name], own[name])
            continue
        error = float((tensor.double() - again[name].double()).norm() / change.norm())
        values = torch.linalg.svdvals(change)
        best = float(values[3:].norm() / values.norm())
        # What was merged is rounded beside the base's numbers, which are larger than their changes.
        stored = gamma(8) * float(own[name].double().norm() / change.norm())
        assert found.errors[name] == pytest.approx(error, rel=0, abs=stored)
        assert found.errors[name] == pytest.approx(best, rel=0, abs=stored)
    worst = max(found.errors.values())
    card = (made["small"] / "README.md").read_text()
    assert "library_name: peft" in card
    assert "A LoRA adapter of ./bert, made with emberge by merging 3 adapters." in card
    assert 'model.load_adapter("small")' in card
    assert f"At most {worst:.3g} of a tensor's change is left out" in card
    assert strategy != "linear" or "| bert+a0 | 0.2941 |" in card  # 0.5 of 0.5 + 0.2 + 1
    assert_same_pass(hidden(adapted(base, made["small"])), hidden(loaded(made["again"])), base)


def test_modules_that_are_saved_whole_are_merged_and_saved_whole(
    base: Path, tmp_path: Path, plugins: Plugins
) -> None:
    (tmp_path / "bert").symlink_to(base)
    for seed in (0, 1):
        save_adapter(
            tmp_path / f"a{seed}", base, seed=seed, modules_to_save=["pooler"], bias="lora_only"
        )
    models = "models: [./bert+./a0, ./bert+./a1]"
    made = run(
        tmp_path,
        f"  small: {{merge_adapters: {{{models}}}}}\n"
        f"  whole: {{merge: {{{models}, strategy: linear}}}}\n",
        plugins,
    )
    whole = load_file(made["whole"] / "model.safetensors")
    small = load_file(made["small"] / "adapter_model.safetensors")
    name = "pooler.dense.weight"
    assert torch.equal(small[f"base_model.model.{name}"], whole[name])
    peft, plain = adapted(base, made["small"]), loaded(made["whole"])
    assert_same_pass(hidden(peft), hidden(plain), base)
    with torch.no_grad():
        pooled = [model(input_ids=torch.tensor([IDS])).pooler_output for model in (peft, plain)]
    assert_same_pass(*pooled, base)


FULL_RANK = 32
FINE_TUNED = ("bert", "modernbert", "gemma3")


@pytest.mark.parametrize("architecture", FINE_TUNED)
def test_a_fine_tune_at_full_rank_is_its_adapter(
    architecture: str, tmp_path: Path, plugins: Plugins
) -> None:
    # Every tensor differs: tables, layers, norms and biases.
    base = tiny.checkpoint(tmp_path / "base", architecture)
    tiny.checkpoint(tmp_path / "tuned", architecture, like=base, seed=1)
    made = run(
        tmp_path,
        "  small: {extract_lora: {model: ./tuned, base: ./base, rank: 64}}\n"
        "  again: {merge: {models: [$small], strategy: passthrough}}\n",
        plugins,
    )
    expected = hidden(loaded(tmp_path / "tuned"))
    assert_same_pass(hidden(adapted(base, made["small"])), expected, base)
    assert_same_pass(hidden(loaded(made["again"])), expected, base)
    # Two factors are rounded, and a product of them is a sum as long as a side of the largest square.
    assert max(adapter_of(made["small"]).errors.values()) < 2 * gamma(FULL_RANK)
    assert not torch.allclose(hidden(loaded(base)), expected, atol=1e-2)


def test_unchanged_tensors_are_not_in_the_adapter(
    base: Path, tmp_path: Path, plugins: Plugins
) -> None:
    tuned = shutil.copytree(base, tmp_path / "tuned")
    state = load_file(tuned / "model.safetensors")
    state[f"{LAYER}.weight"] += 0.1 * torch.ones(32, 32)
    save_file(state, tuned / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "bert").symlink_to(base)
    made = run(
        tmp_path, "  small: {extract_lora: {model: ./tuned, base: ./bert, rank: 8}}\n", plugins
    )
    found = adapter_of(made["small"])
    assert found.ranks == {LAYER: 1}  # a change of rank 1 takes no more
    assert not found.whole
    with pytest.raises(EmbergeError, match="no matrix of the model differs from its base's"):
        run(tmp_path, "  none: {extract_lora: {model: ./bert, base: ./bert, rank: 8}}\n", plugins)


def test_the_layers_that_store_their_transpose_come_out_right(
    tmp_path: Path, plugins: Plugins
) -> None:
    from transformers import GPT2Config, GPT2Model

    size = tiny.write_tokenizer(tmp_path / "base")
    config = GPT2Config(vocab_size=size, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    for seed, name in enumerate(("base", "tuned")):
        torch.manual_seed(seed)
        GPT2Model(config).save_pretrained(tmp_path / name)
    tiny.write_tokenizer(tmp_path / "tuned")
    made = run(
        tmp_path,
        "  small: {extract_lora: {model: ./tuned, base: ./base, rank: 64}}\n"
        "  twice: {merge_adapters: {models: [$small, {model: $small, name: b}]}}\n"
        "  again: {merge: {models: [$small], strategy: passthrough}}\n",
        plugins,
    )
    expected = hidden(loaded(tmp_path / "tuned"))
    for folder in (made["small"], made["twice"]):
        assert_same_pass(hidden(adapted(tmp_path / "base", folder)), expected, tmp_path / "base")
    assert_same_pass(hidden(loaded(made["again"])), expected, tmp_path / "base")
    details = json.loads((made["twice"] / "artifact.json").read_text())["details"]
    assert len(details["weights"]) == 2, "models of one reference have a weight each"
    assert details["models"].keys() == details["weights"].keys()


def test_an_adapter_of_ours_knows_its_base_by_content(
    place: Path, base: Path, plugins: Plugins
) -> None:
    made = run(place, f"  small: {{merge_adapters: {{models: {MODELS}}}}}\n", plugins)
    shutil.copytree(made["small"], place / "mine")
    other = shutil.copytree(base, place / "elsewhere" / "bert")  # of the same name
    merge = "  whole: {{merge: {{models: [./{}+./mine], strategy: linear}}}}\n"
    run(place, merge.format("elsewhere/bert"), plugins)
    state = load_file(other / "model.safetensors")
    state["encoder.layer.1.output.dense.bias"][0] += 1e-3
    save_file(state, other / "model.safetensors", metadata={"format": "pt"})
    said = "mine: is an adapter of 'bert', whose weights differ from those of .*elsewhere/bert"
    with pytest.raises(EmbergeError, match=said) as caught:
        run(place, merge.format("elsewhere/bert"), plugins)
    assert "\n" not in str(caught.value)


def extract(model: str, base: str = "./bert") -> str:
    return f"extract_lora: {{model: {model}, base: {base}, rank: 2}}"


def adapters_of(*models: str) -> str:
    return f"merge_adapters: {{models: [{', '.join(models)}]}}"


REFUSED = {
    "makes no sum of the adapters' factors; give a 'rank'": (
        f"merge_adapters: {{models: {MODELS}, strategy: ties}}"
    ),
    "recipe.yaml:2: option 'rank' .* of at least 1": f"merge_adapters: {{models: {MODELS}, rank: 0}}",
    "needs the option 'rank'": "extract_lora: {model: ./tuned, base: ./bert}",
    "the base must be a whole model": extract("./tuned", "./bert+./a0"),
    "no sum of products of thin factors .DoRA.; give a rank": adapters_of(
        "./bert+./a0", "./bert+./dora"
    ),
    "'tuned.*' lies on another base than './bert'; only adapters of one base": adapters_of(
        "./bert+./a0", "./tuned+./a1"
    ),
    r"its shape is \[64\] and in the base \[32\]; an adapter changes none": extract("./wide"),
    "the base lacks it": extract("./deep"),
}


@pytest.fixture(scope="module")
def others(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("others")
    tiny.checkpoint(root / "tuned", like=base, seed=1, num_hidden_layers=2)
    tiny.checkpoint(root / "wide", hidden_size=64, num_hidden_layers=2)
    tiny.checkpoint(root / "deep", num_hidden_layers=3)
    save_adapter(root / "dora", base, use_dora=True)
    return root


@pytest.mark.parametrize("said", REFUSED)
def test_merges_that_are_no_adapter_are_refused_before_work(
    said: str, place: Path, others: Path, plugins: Plugins
) -> None:

    for other in others.iterdir():
        (place / other.name).symlink_to(other)
    step = REFUSED[said]
    with pytest.raises(EmbergeError, match=said):
        check_recipe(
            parse_recipe(f"steps:\n  x: {{{step}}}\n", plugins, path=place / "recipe.yaml"), plugins
        ).raise_errors()


def test_a_whole_model_needs_the_base_by_name(
    place: Path, others: Path, base: Path, plugins: Plugins
) -> None:
    (place / "tuned").symlink_to(others / "tuned")
    models = "models: [./tuned, {model: ./tuned, name: b}]"
    with pytest.raises(EmbergeError, match="is a whole model; name the base"):
        run(place, f"  small: {{merge_adapters: {{{models}, rank: 4}}}}\n", plugins)
    made = run(
        place, f"  fine: {{merge_adapters: {{{models}, base: ./bert, rank: 64}}}}\n", plugins
    )
    assert_same_pass(hidden(adapted(base, made["fine"])), hidden(loaded(others / "tuned")), base)


def test_factors_of_a_product_are_those_of_the_full_matrix() -> None:
    torch.manual_seed(0)
    b, a = torch.randn(60, 7, dtype=torch.float64), torch.randn(7, 40, dtype=torch.float64)
    values = torch.linalg.svdvals(b @ a)
    for cut in (Truncation(rank=3), Truncation()):
        thin, full = factorise_product(b, a, cut), factorise((b @ a).float(), cut)
        assert thin.rank == full.rank
        made = torch.linalg.svdvals(thin.b.double() @ thin.a.double())[: thin.rank]
        assert_near(made, values[: thin.rank], addends=7)
        best = float(values[thin.rank :].norm() / values.norm())
        assert thin.error == near(best, addends=7, size=1.0)
        assert full.error == near(best, addends=7, size=1.0)
    exact = factorise_product(b, a, Truncation())
    assert exact.rank == 7
    squares = exact.b.double().square().sum(0)  # B = U√S
    assert_near(squares, values[:7], addends=60)
    # Balanced: both factors carry the square roots of the singular values.
    assert_near(exact.a.norm(dim=1), exact.b.norm(dim=0), addends=60)
