"""Adapters as inputs: a base with an adapter on it is merged as the model that it is, none of it written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge.merging import MergeInput, MergeRequest, plan_merge
from emberge.merging.adapter_config import (
    AdapterConfig,
    describe_base,
    hash_origin,
    require_base,
)
from emberge.merging.adapter_reader import open_model
from emberge.merging.apply_adapter import AdaptedSpec, LowRank, MagnitudeScale
from emberge.model_folder import Checkpoint
from emberge.tensor_files import RemoteFile, TensorReader, TensorSpec, read_header
from emberge_merge import Linear, Passthrough
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.json_files import edit
from tests.support.merges import merge_models
from tests.support.peft_adapters import IDS, adapted, hidden, loaded, save_adapter
from tests.support.tolerance import assert_same_pass, near

QUERY = "encoder.layer.0.attention.self.query"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("base") / "bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def plain(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as most are: queries and values, rank 4, alpha 8."""
    return save_adapter(tmp_path_factory.mktemp("plain") / "lora", base)


def materialised(base: Path, adapter: Path, out: Path) -> Path:
    """The adapted model written whole."""
    one = MergeInput("adapted", base, adapter=adapter)
    merge_models([one], strategy=[Passthrough()], out=out, out_dtype="float32")
    return out


KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True, "target_modules": ["query", "output.dense"]},
    "embeddings": {"target_modules": ["word_embeddings", "position_embeddings", "query"]},
    "dora of embeddings": {"target_modules": ["word_embeddings", "query"], "use_dora": True},
    "modules_to_save": {"modules_to_save": ["pooler", "embeddings.LayerNorm"]},
    "every bias and a module": {"bias": "all", "modules_to_save": ["pooler"]},
    "biases of its own": {"bias": "lora_only"},
    "patterns": {
        "target_modules": "all-linear",
        "rank_pattern": {"layer.1.output.dense": 2, r"^encoder.layer.0.*query": 6},
        "alpha_pattern": {"value": 3},
        "use_rslora": True,
    },
    "some layers": {"layers_to_transform": [1]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_adapter_computes_what_the_adapted_model_computes(
    base: Path, tmp_path: Path, kind: str
) -> None:
    adapter = save_adapter(tmp_path / "adapter", base, **KINDS[kind])
    found = hidden(loaded(materialised(base, adapter, tmp_path / "out")))
    expected = hidden(adapted(base, adapter))
    assert_same_pass(found, expected, base, tokens=len(IDS))
    assert float((expected - hidden(loaded(base))).abs().max()) > 1e-3


@pytest.mark.parametrize("dora", [False, True])
def test_layers_that_store_their_transpose_are_adapted_too(tmp_path: Path, dora: bool) -> None:
    from transformers import GPT2Config, GPT2Model

    base = tmp_path / "gpt2"
    size = tiny.write_tokenizer(base)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    GPT2Model(config).save_pretrained(base)
    adapter = save_adapter(
        tmp_path / "adapter",
        base,
        target_modules=[
            "c_attn",
            "attn.c_proj",
        ],  # [32, 96] and a square, which its shape does not tell
        fan_in_fan_out=True,
        use_dora=dora,
    )
    found = hidden(loaded(materialised(base, adapter, tmp_path / "out")))
    assert_same_pass(found, hidden(adapted(base, adapter)), base, tokens=len(IDS))


def specs_of(path: Path, **tensors: torch.Tensor) -> dict[str, TensorSpec]:
    save_file(tensors, path)
    return read_header(path)[0]


def test_dora_gives_the_numbers_computed_by_hand_and_keeps_a_row_of_zeros(tmp_path: Path) -> None:
    specs = specs_of(
        tmp_path / "hand.safetensors",
        w=torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]),
        a=torch.tensor([[1.0, 0.0]]),
        b=torch.tensor([[0.0], [1.0], [0.0]]),
        m=torch.tensor([10.0, 5.0, 1.0]),
    )
    changes = (LowRank(specs["a"], specs["b"], 2.0), MagnitudeScale(specs["m"]))
    spec = AdaptedSpec("w", (3, 2), "float32", origin=specs["w"], changes=changes)
    found = torch.empty(6)
    with TensorReader() as reader:
        reader.read(spec, 0, found)
    # Row by row m (w + 2 b a) / its length, of [3, 4], [2, 5] and [0, 0].
    expected = [6.0, 8.0, 5 * 2 / 29**0.5, 5 * 5 / 29**0.5, 0.0, 0.0]
    assert found.tolist() == near(expected, addends=1)  # in float64, rounded once


@pytest.mark.parametrize("transposed", [False, True])
def test_a_row_has_the_same_bytes_whichever_rows_are_read_with_it(
    tmp_path: Path, transposed: bool
) -> None:
    torch.manual_seed(0)
    rows, width, rank = 101, 37, 5
    out, wide = (width, rows) if transposed else (rows, width)
    specs = specs_of(
        tmp_path / "x.safetensors",
        w=torch.randn(rows, width).bfloat16(),
        a=torch.randn(rank, wide),
        b=torch.randn(out, rank),
        m=torch.rand(out),
    )
    low = LowRank(specs["a"], specs["b"], 0.7, transposed)
    spec = AdaptedSpec(
        "w",
        (rows, width),
        "bfloat16",
        origin=specs["w"],
        changes=(low, MagnitudeScale(specs["m"], transposed)),
    )
    with TensorReader() as reader:
        whole = torch.empty(rows * width)
        reader.read(spec, 0, whole)
        for step in (1, 7 * width, 32 * width, 50):  # by rows, and across them
            for start in range(0, whole.numel(), step if step > 1 else 997):
                part = torch.empty(min(step, whole.numel() - start))
                reader.read(spec, start, part)
                assert torch.equal(part, whole[start : start + part.numel()])
        raw = bytearray(2 * 50 + 1)
        reader.read_bytes(spec, 33, memoryview(raw))
    stored = whole.bfloat16().view(torch.uint8).numpy().tobytes()
    assert bytes(raw) == stored[33 : 33 + len(raw)]


def wrapped(kind: str, base: Path, folder: Path) -> Path:
    """An adapter trained on another class of the same weights, whose names have other words before them."""
    if kind == "masked":
        from transformers import AutoModelForMaskedLM

        return save_adapter(folder, base, model=AutoModelForMaskedLM)
    adapter = save_adapter(folder, base)
    file = adapter / "adapter_model.safetensors"
    lead = {"sentence": "0.auto_model.", "old": "0.auto_model.", "named": ""}[kind]
    tensors = {
        k.replace("base_model.model.", f"base_model.model.{lead}"): v
        for k, v in load_file(file).items()
    }
    if kind in ("old", "named"):  # releases that kept the adapter's name
        tensors = {
            k.replace("lora_A.weight", "lora_A.default.weight").replace(
                "lora_B.weight", "lora_B.default.weight"
            ): v
            for k, v in tensors.items()
        }
    save_file(tensors, file)
    return adapter


@pytest.mark.parametrize("kind", ["masked", "sentence", "old", "named"])
def test_adapters_of_other_classes_and_wrappers_find_the_bases_tensors(
    kind: str, base: Path, tmp_path: Path
) -> None:
    adapter = wrapped(kind, base, tmp_path / "adapter")
    names = open_model(base, adapter).tensor_names
    assert names is not None
    made = {name for name, spec in names.specs.items() if isinstance(spec, AdaptedSpec)}
    layers = [f"encoder.layer.{n}.attention.self" for n in (0, 1)]
    assert made == {f"{layer}.{part}.weight" for layer in layers for part in ("query", "value")}


def said_of(*members: MergeInput) -> str:
    """What is wrong, from headers and configs alone."""
    plan = plan_merge(MergeRequest(inputs=members, strategy=(Linear(),)))
    return "\n".join(str(problem) for problem in plan.problems)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"peft_type": "LOHA"}, "type LOHA are not merged"),
    "activated": ({"alora_invocation_tokens": [1, 2]}, "'alora_invocation_tokens' is not supp"),
    "not known": ({"of_tomorrow": True}, "'of_tomorrow' is not supported"),
    "tokens": ({"trainable_token_indices": [3]}, "'trainable_token_indices' is not supported"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which takes"),
    "a rank that is none": ({"r": "eight"}, "a value of a wrong kind"),
    "a pattern that is none": ({"rank_pattern": {"(": 2}}, "a value of a wrong kind"),
    "another rank": ({"r": 8}, "has rank 4 and its config says 8"),
    "dora without": ({"use_dora": True}, "lacks magnitudes and its config says DoRA"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_adapters_that_cannot_be_merged_are_refused_by_name_before_work(
    case: str, base: Path, plain: Path, tmp_path: Path
) -> None:
    adapter = shutil.copytree(plain, tmp_path / "adapter")
    changes, expected = REFUSED[case]
    edit(adapter, "adapter_config.json", **changes)
    said = said_of(MergeInput("x", base, adapter=adapter), MergeInput("y", base, adapter=plain))
    assert expected in said
    assert "\n" not in said


def test_damaged_adapters_are_named(base: Path, plain: Path, tmp_path: Path) -> None:
    key = f"base_model.model.{QUERY}"

    def said(change: Callable[[dict[str, torch.Tensor]], object]) -> str:
        shutil.rmtree(tmp_path / "adapter", ignore_errors=True)
        adapter = shutil.copytree(plain, tmp_path / "adapter")
        tensors = load_file(file := adapter / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, file)
        return said_of(MergeInput("x", base, adapter=adapter))

    assert "lacks one of its two factors" in said(lambda t: t.pop(f"{key}.lora_B.weight"))
    other = torch.ones(48, 4)
    assert "cannot take them" in said(lambda t: t.update({f"{key}.lora_B.weight": other}))
    assert "does not have; name the base" in said(
        lambda t: t.update(
            {key.replace("layer.0", "layer.9") + ".lora_A.weight": torch.ones(4, 32)}
        )
    )
    assert "of a kind that is not supported" in said(
        lambda t: t.update({f"{key}.lora_diag": other})
    )
    assert "and its config says no DoRA" in said(
        lambda t: t.update({f"{key}.lora_magnitude_vector": torch.ones(32)})
    )
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    inputs = [MergeInput("x", base, adapter=tmp_path / "adapter")]
    with pytest.raises(Exception, match=r"has no adapter_model\.safetensors; get the file"):
        merge_models(inputs, strategy=[Linear()], out=tmp_path / "out")
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(b"")
    assert f"emberge safetensors {tmp_path / 'adapter'}" in said_of(*inputs)


def test_an_adapter_of_another_base_is_refused_by_name_or_doubted(
    base: Path, plain: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--acme--bert" / "snapshots" / "0a1b2c"
    shutil.copytree(base, snapshot)
    adapter = shutil.copytree(plain, tmp_path / "adapter")
    edit(adapter, "adapter_config.json", base_model_name_or_path="acme/bert-large")
    said = said_of(MergeInput("x", snapshot, adapter=adapter))
    assert "is an adapter of 'acme/bert-large', and 'acme/bert' is another model" in said
    one = MergeInput("x", base, adapter=adapter)  # in a folder whose name does not tell
    plan = plan_merge(MergeRequest(inputs=(one,), strategy=(Linear(),)))
    assert not plan.problems
    assert any("says that it was made on 'acme/bert-large'" in w for w in plan.warnings)
    edit(adapter, "adapter_config.json", base_model_name_or_path="acme/bert")
    assert said_of(MergeInput("x", snapshot, adapter=adapter)) == ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trained", [["embed_tokens", "lm_head"], ["lm_head"]])
def test_a_tied_head_stays_tied_and_a_warning_names_it(trained: list[str], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    sizes = {"num_hidden_layers": 1, "tie_word_embeddings": True}
    base = tiny.transformer(tmp_path / "base", "AutoModelForCausalLM", "qwen3", **sizes)
    causal: dict[str, Any] = {"model": AutoModelForCausalLM, "task_type": "CAUSAL_LM"}
    adapter = save_adapter(
        tmp_path / "a", base, target_modules=["q_proj"], modules_to_save=trained, **causal
    )
    plan = plan_merge(
        MergeRequest(inputs=(MergeInput("x", base, adapter=adapter),), strategy=(Linear(),))
    )
    assert any("the trained lm_head is left out" in warning for warning in plan.warnings)
    made = materialised(base, adapter, tmp_path / "made")
    embedding = load_file(adapter / "adapter_model.safetensors").get(
        "base_model.model.model.embed_tokens.weight"
    )
    found = AutoModelForCausalLM.from_pretrained(made)
    assert found.config.tie_word_embeddings
    assert "lm_head.weight" not in load_file(made / "model.safetensors")
    if embedding is not None:
        assert torch.equal(found.get_input_embeddings().weight, embedding)


def test_an_adapter_with_a_head_that_its_base_lacks_is_refused(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification as Classifier

    adapter = save_adapter(tmp_path / "a", base, model=Classifier, task_type="SEQ_CLS")
    said = said_of(MergeInput("x", base, adapter=adapter))
    assert "it changes 'classifier" in said


def test_rows_of_new_tokens_need_their_tokenizer(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    class GrownEncoder:
        @staticmethod
        def from_pretrained(folder: Path) -> Any:
            model = AutoModel.from_pretrained(folder)
            model.resize_token_embeddings(model.config.vocab_size + 1)
            return model

    adapter = save_adapter(tmp_path / "grown", base, model=GrownEncoder, name=str(base))  # type: ignore[arg-type]
    request = MergeRequest(
        inputs=(MergeInput("a", base, adapter=adapter),), strategy=(Passthrough(),)
    )
    assert any("put the tokenizer" in line for line in plan_merge(request).warnings)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["<x>"])
    tokenizer.save_pretrained(adapter)
    assert not plan_merge(request).warnings
    out = materialised(base, adapter, tmp_path / "out")
    rows = loaded(out).get_input_embeddings().weight
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids("<x>") == len(rows) - 1


def test_an_adapter_saved_with_its_modules_brings_them(tmp_path: Path) -> None:
    from peft import LoraConfig
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base = tiny.transformer(tmp_path / "base")
    (base / "LICENSE").write_text("terms")
    parts = [Transformer(str(base)), Pooling(32, "cls")]
    model = SentenceTransformer(modules=parts, prompts={"query": "q: "}, device="cpu")
    model.add_adapter(LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    model.save(str(tmp_path / "ad"))
    made = materialised(base, tmp_path / "ad", tmp_path / "made")
    found = SentenceTransformer(str(made), device="cpu")
    assert (found[1].pooling_mode, found.prompts["query"]) == ("cls", "q: ")
    assert_same_pass(found.encode("a list"), model.encode("a list"), base)
    assert (made / "LICENSE").read_text() == "terms"
    assert not list(made.glob("adapter_*"))


def test_a_folder_of_metadata_alone_is_checked_as_far_as_it_goes(
    base: Path, plain: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    shutil.copy(plain / "adapter_config.json", adapter)
    members = (MergeInput("x", base, adapter=adapter), MergeInput("y", base))
    plan = plan_merge(MergeRequest(inputs=members, strategy=(Linear(),)))
    assert not plan.problems
    assert plan.future_models == {"x"}
    edit(adapter, "adapter_config.json", peft_type="IA3")
    assert "type IA3" in said_of(*members)


def test_the_hash_of_a_base_ignores_modules_after_its_trunk(tmp_path: Path) -> None:
    def hash_of(folder: Path) -> str | None:
        checkpoint = Checkpoint(folder)
        return hash_origin(checkpoint.tensor_names, checkpoint)

    one, other = (tiny.projected(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert hash_of(one) != hash_of(other)
    dense = one / "2_Dense" / "model.safetensors"
    before = hash_of(one)
    save_file({n: t + 1 for n, t in load_file(dense).items()}, dense, {"format": "pt"})
    assert hash_of(one) == before


def test_a_base_on_a_server_is_not_compared_by_its_hash(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, weights := tmp_path / "model.safetensors")
    content = weights.read_bytes()
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    RemoteFile(f"hf://me/one/{weights.name}", len(content), "v", None, header).write(weights)
    weights.unlink()
    base, record = Checkpoint(tmp_path), {"adapter_of": {"name": "one", "hash": "0"}}
    metadata, config = {"emberge": json.dumps(record)}, AdapterConfig(tmp_path / "a", 1, 1.0)
    require_base(config, metadata, base.tensor_names, base)
    assert describe_base(base)["adapter_of"]["hash"] is None
