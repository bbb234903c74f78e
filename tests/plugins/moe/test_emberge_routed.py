"""The routed model class: equal to the dense model at the start, with names, gates and gradients by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge_encoder import TextEncoder
from emberge_moe.modeling_emberge_routed import EmbergeRoutedConfig, EmbergeRoutedModel, Router
from emberge_moe.routed_format import AUTO_MAP
from safetensors import safe_open
from transformers import AutoModel

from tests.support.json_files import edit
from tests.support.places import ROOT
from tests.support.routed_models import DENSE, dense_model, routed, routed_state

LAYERS, EXPERTS = [1, 2], 4


def _copied(dense: Any, **options: Any) -> EmbergeRoutedModel:
    """The dense model with copies of its blocks as experts."""
    given = {"routed_layers": LAYERS, "num_experts": EXPERTS, "top_k": 2, **options}
    model = EmbergeRoutedModel(EmbergeRoutedConfig(inner=dense.config.to_dict(), **given))
    model.load_state_dict(routed_state(dense, given["routed_layers"], EXPERTS))
    return model.to(dense.dtype).eval()


def _batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    return {"input_ids": torch.randint(5, 60, (3, 9)), "attention_mask": mask}


def _names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("kind", DENSE)
def test_equal_experts_compute_the_dense_model(kind: str) -> None:
    dense = dense_model(kind).double()
    batch = _batch()
    with torch.no_grad():
        want = dense(**batch)[0]
        for k in (1, 2, EXPERTS):
            found = _copied(dense, top_k=k)(**batch)[0]
            torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
        shrunk = _copied(dense, top_k=1, normalize_gates=False)(**batch)[0]
        # The norm behind Gemma's block undoes a scale.
        assert kind == "gemma3_text" or float((shrunk - want).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", DENSE)
def test_tensors_have_the_dense_models_names_on_disk(kind: str, tmp_path: Path) -> None:
    dense = dense_model(kind).double()
    dense.save_pretrained(tmp_path / "dense")
    model = _copied(dense)
    model.save_pretrained(tmp_path / "routed")
    before, after = _names(tmp_path / "dense"), _names(tmp_path / "routed")
    routers = {name for name in after if name.endswith(".router.weight")}
    assert len(routers) == len(LAYERS)
    experts = {name for name in after if ".experts." in name}
    assert after - routers - experts <= before
    for router in routers:
        path = router.removesuffix("router.weight")
        for expert in range(EXPERTS):
            above = f"{path}experts.{expert}."
            mine = {f"{path}{n.removeprefix(above)}" for n in experts if n.startswith(above)}
            assert mine <= before
            assert mine >= {name for name in before - after if name.startswith(path)}
    loaded, report = AutoModel.from_pretrained(
        tmp_path / "routed", dtype=torch.float64, output_loading_info=True
    )
    assert not any(report.values())
    with torch.no_grad():
        # Frequencies of positions are computed in float32 by either.
        torch.testing.assert_close(loaded(**_batch())[0], model(**_batch())[0], rtol=0, atol=1e-6)


def test_names_with_the_dense_models_prefix_load(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = routed(tmp_path / "model")
    plain = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    tensors = load_file(folder / "model.safetensors")
    named = {f"bert.{name}": value for name, value in tensors.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    model, report = AutoModel.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        torch.testing.assert_close(model(**_batch())[0], plain(**_batch())[0], rtol=0, atol=1e-12)


def test_a_tokens_output_is_the_sum_worked_out_by_hand() -> None:
    """Every token through its two experts one by one, and gates of both kinds."""
    dense = dense_model("jina_embeddings_v3").double()
    model = _copied(dense)
    block: Any = model.get_submodule("layers.1.mlp")
    for expert in block.experts:
        for value in expert.parameters():
            value.data.normal_(0, 0.3)
    states = torch.randn(2, 5, 16, dtype=torch.float64)
    block.requires_grad_(False)
    for normalize in (True, False):
        block.router.normalize = normalize
        found = block(states)
        for row in range(2):
            for place in range(5):
                token = states[row, place]
                gates = (block.router.weight @ token).softmax(0)
                best = gates.argsort(descending=True)[:2]
                factor = 1 / float(gates[best].sum()) if normalize else 1.0
                want = sum(factor * gates[e] * block.experts[int(e)](token) for e in best)
                torch.testing.assert_close(found[row, place], want, rtol=0, atol=1e-12)


def test_gates_are_the_numbers_worked_out_by_hand() -> None:
    """Logits [2, 1, 0, -1]: gates of the best two, renormalised or not."""
    inner = dense_model("bert").config
    config = EmbergeRoutedConfig(inner=inner.to_dict(), num_experts=4)
    assert config.get_text_config().hidden_size == inner.hidden_size
    assert config.get_text_config(decoder=True).hidden_size == inner.hidden_size
    empty = EmbergeRoutedConfig()
    assert empty.get_text_config() is empty
    router = Router(config)
    with torch.no_grad():
        router.weight.zero_()
        router.weight[:, 0] = torch.tensor([2.0, 1.0, 0.0, -1.0])
    token = torch.zeros(1, 16)
    token[0, 0] = 1
    torch.testing.assert_close(router(token)[1][0], torch.tensor([0.731058579, 0.268941421]))
    router.normalize = False
    gates = router(token)[1]
    torch.testing.assert_close(gates[0], torch.tensor([0.643914260, 0.236882818]))
    torch.testing.assert_close(gates.sum(), torch.tensor(0.880797078))
    # Those of a router in bfloat16 are computed in float32.
    router = Router(config).to(torch.bfloat16)
    torch.nn.init.normal_(router.weight)
    logits, gates, _ = router(torch.randn(5, 16, dtype=torch.bfloat16))
    assert (logits.dtype, gates.dtype) == (torch.bfloat16, torch.float32)
    best = logits.float().softmax(-1).topk(2).values
    torch.testing.assert_close(gates, best / best.sum(-1, keepdim=True), rtol=1e-6, atol=0)


def test_gradients_equal_finite_differences() -> None:
    """Gradients of experts, router and inputs against differences, and with blocks computed again."""
    model = _copied(dense_model("bert").double(), normalize_gates=False)
    batch = _batch()

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(**batch)[0].square().sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    assert {n for n in plain if "expert" in n} == {
        n for n, _ in model.named_parameters() if "expert" in n
    }
    for name in (n for n in plain if ".experts.2." in n or "router" in n):
        parameter, step = model.get_parameter(name), 1e-6
        place = int(plain[name].abs().argmax())
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.view(-1)[place] += sign * step
                values.append(float(model(**batch)[0].square().sum()))
                parameter.view(-1)[place] -= sign * step
        by_hand = (values[0] - values[1]) / (2 * step)
        assert float(plain[name].view(-1)[place]) == pytest.approx(by_hand, rel=1e-5, abs=1e-4)
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    for name, value in gradients().items():
        torch.testing.assert_close(value, plain[name], rtol=0, atol=1e-10)


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    model = _copied(dense_model("bert"), top_k=1)
    block: Any = model.get_submodule("encoder.layer.1")
    with torch.no_grad():
        block.router.weight.zero_()  # the first of equal ones is taken
    model(**_batch())[0].sum().backward()
    counts = [int(e.output.dense.weight.grad.count_nonzero()) for e in block.experts]
    assert sum(count > 0 for count in counts) == 1
    assert all(p.grad is not None for p in block.experts.parameters())


def test_the_attention_kernel_reaches_the_dense_model(tmp_path: Path) -> None:
    folder = routed(tmp_path / "model")
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.bfloat16)
    kernels = {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")}
    assert kernels == {"eager"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inner": {"model_type": "distilbert"}}, ("distilbert", "bert, roberta")),
        ({"top_k": 5, "num_experts": 4}, ("top_k", "4")),
        ({"top_k": 0}, ("top_k",)),
        ({"routed_layers": [1, 3]}, ("routed_layers", "3", "0 to 2")),
    ],
)
def test_a_config_that_fits_no_model_is_refused(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    inner = dense_model("bert").config.to_dict()
    with pytest.raises(ValueError, match=words[0]) as caught:
        EmbergeRoutedConfig(**{"inner": inner, **changes})
    assert all(word in str(caught.value) for word in words)


def test_code_in_a_folder_is_not_run(tmp_path: Path) -> None:
    folder = routed(tmp_path / "model")
    (folder / "modeling_emberge_routed.py").write_text("raise SystemExit('run')")
    edit(folder, "config.json", auto_map=AUTO_MAP)
    assert TextEncoder().describe(folder).problems == ()
    encoder: Any = TextEncoder().load(folder, device="cpu", dtype="float32")
    assert isinstance(encoder.module.trunk, EmbergeRoutedModel)


def test_attention_is_switched_in_the_dense_models_config(tmp_path: Path) -> None:
    folder = routed(tmp_path / "model", "gemma3_text", dense={"use_bidirectional_attention": False})
    (problem,) = TextEncoder(pooling="mean").describe(folder).problems
    assert "causal" in problem
    backbone = TextEncoder(pooling="mean", attention="bidirectional")
    encoder = backbone.load(folder, device="cpu", dtype="float32")
    encoder.save(tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "config.json").read_text())
    assert saved["inner"]["use_bidirectional_attention"] is True
    again = TextEncoder().load(tmp_path / "out", device="cpu", dtype="float32")
    features = encoder.collate(encoder.tokenise(["sort a list"], prompt="", max_length=None))
    with torch.no_grad():
        assert torch.equal(encoder(features).embeddings, again(features).embeddings)


def test_the_file_needs_torch_and_transformers_alone() -> None:
    text = (ROOT / "plugins/emberge_moe/modeling_emberge_routed.py").read_text()
    named = set(re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE))
    assert named - set(sys.stdlib_module_names) == {"torch", "transformers"}
