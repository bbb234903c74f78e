"""Tensors that heads, wrappers, releases, shards and dtypes name or store differently are merged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from emberge import PerTensor
from emberge.merging import MergeInput, Rule
from emberge_merge import TaskArithmetic
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.json_files import edit
from tests.support.tolerance import assert_combined, assert_near, assert_same_pass
from tests.support.whole import embed, forward, merge, plan, problems, tensors

HEADED = ["AutoModelForMaskedLM", "AutoModelForSequenceClassification"]


@pytest.mark.parametrize(
    ("architecture", "cls"),
    [("bert", HEADED[0]), ("xlm-roberta", HEADED[1]), ("modernbert", HEADED[0])],
)
def test_a_headed_model_merges_with_a_plain(architecture: str, cls: str, tmp_path: Path) -> None:
    import transformers

    plain = tiny.transformer(tmp_path / "plain", architecture=architecture, seed=1)
    headed = tiny.transformer(tmp_path / "headed", cls, architecture, seed=2)
    down, up = merge(tmp_path / "down", plain, headed), merge(tmp_path / "up", headed, plain)
    for out, loader, pattern in (
        (down, transformers.AutoModel, plain),
        (up, getattr(transformers, cls), headed),
    ):
        _, info = loader.from_pretrained(out, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys")), info
        assert tensors(out).keys() == tensors(pattern).keys()
    one, two = (
        loader.from_pretrained(f) for f in (plain, headed) for loader in (transformers.AutoModel,)
    )
    merged = transformers.AutoModel.from_pretrained(up)
    name = next(n for n, _ in one.named_parameters() if "query.weight" in n or "Wqkv.weight" in n)
    pair = [model.get_parameter(name).detach() for model in (one, two)]
    assert_combined(merged.get_parameter(name).detach(), pair, [0.5, 0.5])
    # The head is that of the one model that has it.
    heads = {n: t for n, t in tensors(headed).items() if n.startswith(("./cls.", "./classifier"))}
    assert all(torch.equal(tensors(up)[n], t) for n, t in heads.items())


def test_the_plan_says_what_becomes_of_heads(tmp_path: Path) -> None:
    plain = tiny.transformer(tmp_path / "plain", seed=1)
    reranker = tiny.transformer(
        tmp_path / "reranker", "AutoModelForSequenceClassification", seed=2, num_labels=1
    )
    masked = tiny.transformer(tmp_path / "masked", "AutoModelForMaskedLM", seed=3)
    said = "\n".join(plan(plain, reranker).warnings)
    assert "the head 'classifier' of 'reranker': left out, as 'plain' has none" in said
    said = "\n".join(plan(reranker, plain).warnings)
    assert "'plain': without the head 'classifier' of 'reranker'" in said
    # Two heads of one name for two tasks are two things.
    one = tiny.transformer(
        tmp_path / "one", "AutoModelForSequenceClassification", "modernbert", num_labels=1
    )
    two = tiny.transformer(tmp_path / "two", "AutoModelForMaskedLM", "modernbert", seed=4)
    found = plan(one, two)
    assert not found.problems
    assert "head.dense.weight" in found.copied
    assert "head.dense.weight" in plan(one, shutil.copytree(one, tmp_path / "three")).merged
    assert "without the head 'cls.predictions'" in "\n".join(plan(masked, reranker).warnings)


def t5(folder: Path, cls: str, seed: int) -> Path:
    import transformers

    words = tiny.write_tokenizer(folder)
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return tiny.save_random(
        folder, transformers.T5Config(vocab_size=words, **sizes), cls, seed=seed
    )


def test_unused_heads_are_left_out_or_merged_from_those_that_have_them(tmp_path: Path) -> None:
    encoders = [t5(tmp_path / name, "T5EncoderModel", seed=i) for i, name in enumerate("ab")]
    full = [
        t5(tmp_path / name, "T5ForConditionalGeneration", seed=i) for i, name in enumerate("cd")
    ]
    kept = {n for n in tensors(encoders[0]) if n.startswith("encoder")}
    for models, left in ([encoders[0], full[0]], 1), ([full[0], encoders[0]], 0):
        found = plan(*models)
        assert (len(found.problems), sum("decoder" in line for line in found.warnings)) == (0, 1)
        merged = tensors(merge(tmp_path / f"{models[0].name}-merged", *models))
        for name in kept:
            mean = (tensors(encoders[0])[name] + tensors(full[0])[name]) / 2
            assert_near(merged[name], mean, 2)
        decoder = {n: t for n, t in tensors(full[0]).items() if "decoder.block" in n}
        assert all(torch.equal(merged[n], t) for n, t in decoder.items() if not left)
        assert left or decoder.keys() <= merged.keys()
    two = plan(full[0], encoders[0], full[1])
    assert {t.action for t in two.tensors if "decoder.block" in t.name} == {"merge"}


def test_an_unused_head_needs_no_base(tmp_path: Path) -> None:
    base = tiny.transformer(tmp_path / "base", "AutoModelForMaskedLM", "xlm-roberta", seed=1)
    a, b = (
        tiny.transformer(tmp_path / n, architecture="xlm-roberta", seed=i)
        for i, n in enumerate("ab", start=2)
    )
    given = {"base": MergeInput("base", base), "strategy": (TaskArithmetic(),)}
    found = plan(a, b, **given)
    assert sum("the base lacks 'pooler'" in line for line in found.warnings) == 1
    merged = tensors(merge(tmp_path / "out", a, b, **given))
    for name, one in tensors(a).items():
        total = one + tensors(b)[name]
        old = tensors(base).get(name.replace("./", "./roberta."))
        assert_near(merged[name], total / 2 if old is None else total - old, 8, name=name)
    classifiers = [
        tiny.transformer(tmp_path / n, "AutoModelForSequenceClassification", "xlm-roberta", seed=i)
        for i, n in enumerate("cd", start=4)
    ]
    said = problems(*classifiers, **given)
    assert "rules: [{filter: classifier, strategy: linear}]" in said
    assert "\n" not in said, "one line for all of a head"
    projected = [tiny.projected(tmp_path / n, seed=i) for i, n in enumerate("ef")]
    bare = {**given, "base": MergeInput("base", tmp_path / ".e")}
    said = problems(*projected, **bare)
    parts = ("2_Dense", "3_LayerNorm", "4_Dense")
    rules = ", ".join(f"{{filter: {part}, strategy: linear}}" for part in parts)
    assert said.endswith(f"(`rules: [{rules}]`)")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("prefix", "architecture"),
    [("0.auto_model.", "bert"), ("roberta.", "xlm-roberta"), ("_orig_mod.model.", "modernbert")],
)
def test_prefixes_of_wrappers_are_removed(prefix: str, architecture: str, tmp_path: Path) -> None:
    one = tiny.transformer(tmp_path / "one", architecture=architecture, seed=1)
    two = tiny.transformer(tmp_path / "two", architecture=architecture, seed=2)
    three = shutil.copytree(two, tmp_path / "three")
    named = {f"{prefix}{n}": t for n, t in load_file(two / "model.safetensors").items()}
    save_file(named, three / "model.safetensors")
    plain, wrapped = merge(tmp_path / "plain", one, two), merge(tmp_path / "wrapped", one, three)
    assert tensors(plain).keys() == tensors(wrapped).keys()
    assert all(torch.equal(t, tensors(wrapped)[n]) for n, t in tensors(plain).items())
    # Whoever gives the names: what comes out can be loaded.
    turned = merge(tmp_path / "turned", three, one)
    assert_same_pass(forward(turned), forward(plain), plain)


def test_a_rule_owns_tensors_by_their_names_in_the_result(tmp_path: Path) -> None:
    kind = "AutoModelForMaskedLM"
    base, model = (
        tiny.transformer(tmp_path / n, kind, seed=i) for i, n in enumerate(("base", "a"))
    )
    rule = Rule(filter="bert.encoder", strategy=(TaskArithmetic(scale=PerTensor(2)),))
    out = merge(tmp_path / "out", model, base=MergeInput("base", base), rules=(rule,))
    name = "./bert.encoder.layer.0.output.dense.weight"
    states = [tensors(folder)[name] for folder in (out, model, base)]
    assert_combined(states[0], states[1:], [2, -1])


def test_names_of_a_merged_adapter_lose_their_wrapper(tmp_path: Path) -> None:
    one = tiny.transformer(tmp_path / "one", "AutoModelForCausalLM", "qwen3", seed=1)
    edit(one, "config.json", tie_word_embeddings=False)
    own = load_file(one / "model.safetensors")
    own["lm_head.weight"] = torch.randn_like(own["model.embed_tokens.weight"])
    save_file(own, one / "model.safetensors")
    two = shutil.copytree(one, tmp_path / "two")
    save_file({f"base_model.model.{n}": t for n, t in own.items()}, two / "model.safetensors")
    found = plan(one, two)
    assert not found.problems
    assert "lm_head.weight" in found.merged
    assert plan(two, one).merged == list(own) or sorted(plan(two, one).merged) == sorted(own)


def test_gamma_and_beta_of_old_berts_are_weight_and_bias(tmp_path: Path) -> None:
    one = tiny.transformer(tmp_path / "one", "AutoModelForMaskedLM", seed=1)
    old = shutil.copytree(one, tmp_path / "old")
    own = load_file(one / "model.safetensors")
    renamed = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for n, t in own.items()
    }
    # A tied decoder was written out in full, and its bias twice.
    renamed["cls.predictions.decoder.weight"] = own[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    renamed["cls.predictions.decoder.bias"] = own["cls.predictions.bias"].clone()
    save_file(renamed, old / "model.safetensors")
    out = merge(tmp_path / "out", one, old)
    assert all(torch.equal(t, own[n.removeprefix("./")]) for n, t in tensors(out).items())
    assert len(tensors(out)) == len(own)
    assert not problems(old, one)


def test_models_with_other_shards_and_dtypes_merge(tmp_path: Path) -> None:
    dtypes = ["float32", "bfloat16", "float16"]
    folders = [
        tiny.checkpoint(tmp_path / d, seed=i, dtype=d, max_shard_size="20KB")
        for i, d in enumerate(dtypes)
    ]
    assert (folders[1] / "model.safetensors.index.json").is_file()
    out = merge(tmp_path / "out", *folders, max_shard_size=20_000)
    loaded = [tensors(f) for f in folders]
    for name, tensor in tensors(out).items():
        assert tensor.dtype == torch.float32
        assert_combined(tensor, [m[name] for m in loaded], [1 / 3] * 3)
    half = merge(tmp_path / "half", *reversed(folders))
    assert {t.dtype for t in tensors(half).values()} == {torch.float16}
    assert json.loads((half / "config.json").read_text())["dtype"] == "float16"
    assert embed(half).isfinite().all()


def test_a_padded_vocabulary_also_pads_the_heads_bias(tmp_path: Path) -> None:
    one = tiny.transformer(tmp_path / "one", "AutoModelForMaskedLM", seed=1)
    two = tiny.transformer(tmp_path / "two", "AutoModelForMaskedLM", seed=2, vocab_size=160)
    first, second = tensors(one), tensors(two)
    out = tensors(merge(tmp_path / "out", one, two))
    wide = tensors(merge(tmp_path / "wide", two, one))
    for name in ("./cls.predictions.bias", "./bert.embeddings.word_embeddings.weight"):
        size = len(first[name])
        assert len(out[name]) == size < len(wide[name]) == 160
        for found in (out[name], wide[name][:size]):
            assert_combined(found, [first[name], second[name][:size]], [0.5, 0.5])
        assert torch.equal(wide[name][size:], second[name][size:])
