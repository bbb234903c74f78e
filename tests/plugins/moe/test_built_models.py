"""Files, figures and messages of routed and rotary models, each as a whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    Artifact,
    CheckpointError,
    ModelRef,
    Plugins,
    StepRef,
    load_plugins,
)
from emberge.contracts import Reference
from emberge.model_folder import Checkpoint
from emberge_encoder import TextEncoder
from emberge_moe.balance import Loads, RouterHealth
from emberge_moe.downcycle_step import Downcycle, RoutedModel, read_load
from emberge_moe.rope import Rope, rotary_config, rotary_tensors
from emberge_moe.routed import Routed
from emberge_moe.routers import ROUTERS, RouterTaps
from emberge_moe.upcycle.dense_model import DenseModel, is_routed
from emberge_moe.upcycle.native import NATIVE, ORIGIN
from emberge_moe.upcycle.nomic_v2 import NOMIC_V2
from emberge_moe.upcycle.plan import Plan, choose_target, refuse_dense, routed_tensors
from emberge_moe.upcycle.routed_format import (
    ROUTED,
)
from emberge_moe.upcycle.routing import LayerRouting, choose_layers
from emberge_moe.upcycle.upcycle_step import Upcycle
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.glance import Glance
from tests.support.routable import dense
from tests.support.watched import SIZE, assert_built_as_promised

TEXTS = ["open a file", "sort the list"]
UNEVEN = ["open a file", "sort the list of a file"]


@pytest.fixture(scope="module", autouse=True)
def plugins() -> Plugins:
    """Every plugin, as the routed class is one's own."""
    return load_plugins()


PAIR = (ModelRef("a"), ModelRef("b"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dense models by type, and the routed model of a bert."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("bert", "qwen3"):
        dense(root / kind, kind)
    bench = Bench(root / "run", provenance={"fingerprint": "of the run"})
    step = Upcycle(model=ModelRef(str(root / "bert")), experts=4)
    step.run(bench)
    (root / "routed").symlink_to(bench.folder)
    return root


def of(folder: Path) -> DenseModel:
    return DenseModel(Checkpoint(folder))


def size_of(folder: Path) -> int:
    return sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())


# ── every step that builds a checkpoint ─────────────────────────────────────────────────────────


def test_a_routed_model_is_built_as_every_checkpoint(models: Path, tmp_path: Path) -> None:
    folder = models / "bert"
    step = Upcycle(
        model=ModelRef(str(folder)),
        experts=4,
        top_k=3,
        normalize_gates=False,
        layers=(2, 0),
    )
    artifact = assert_built_as_promised(step, tmp_path, folder, "upcycled")
    out = tmp_path / "out"
    experts = sum(
        t.numel() for n, t in load_file(out / "model.safetensors").items() if ".experts." in n
    )
    details = dict(artifact.details["upcycled"])
    assert artifact.parents == (str(folder),)
    assert artifact.details["made_by"] == "upcycling"
    assert details == {
        "from": "bert",
        "format": "emberge_routed",
        "loads_with": "its class is modeling_emberge_routed.py in the folder",
        "layers": [0, 2],
        **{"experts": 4, "top_k": 3, "normalize_gates": False},
        "parameters": {"all": size_of(out), "active": size_of(out) - experts // 4},
    }
    config = json.loads((out / "config.json").read_text())
    assert config.pop("auto_map").keys() == {"AutoConfig", "AutoModel", "AutoModelForMaskedLM"}
    assert config == {
        **{"model_type": "emberge_routed", "architectures": ["EmbergeRoutedModel"]},
        "inner": json.loads((folder / "config.json").read_text()),
        **{"routed_layers": [0, 2], "num_experts": 4, "top_k": 3},
        **{"normalize_gates": False, "upcycling": "of the run"},
    }
    assert (out / "modeling_emberge_routed.py").read_bytes() == ROUTED.code.read_bytes()


def test_a_rotary_model_is_built_as_every_checkpoint(tmp_path: Path) -> None:
    folder = tiny.transformer(
        tmp_path / "xlmr", "AutoModelForMaskedLM", "xlm-roberta", num_hidden_layers=1
    )
    step = Rope(model=ModelRef(str(folder)), rope_theta=5000.0, max_length=99)
    artifact = assert_built_as_promised(step, tmp_path / "run", folder, "rotary")
    assert artifact.parents == (str(folder),)
    details = dict(artifact.details)
    assert "mlm" in details.pop("to_be_adapted")
    assert details == {
        "made_by": "giving rotary positions to",
        "base": "the model",
        "base_reference": str(folder),
        "base_fingerprint": "its content",
        **{"rope_theta": 5000.0, "max_length": 99},
    }
    out = tmp_path / "run" / "out"
    own = json.loads((folder / "config.json").read_text())
    gone = {
        *("model_type", "architectures", "transformers_version", "position_embedding_type"),
        *("is_decoder", "add_cross_attention", "_name_or_path"),
    }
    assert json.loads((out / "config.json").read_text()) == {
        **{key: value for key, value in own.items() if key not in gone},
        "model_type": "jina_embeddings_v3",
        "architectures": ["JinaEmbeddingsV3ForMaskedLM"],
        "max_position_embeddings": 99,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }
    settings = (out / "tokenizer_config.json").read_text()
    assert json.loads(settings)["model_max_length"] == 99
    assert settings == json.dumps(json.loads(settings), indent=2, ensure_ascii=False) + "\n"
    prefix = "roberta."
    assert {one.name for one in rotary_tensors(Checkpoint(folder))} == {
        *(f"{prefix}embeddings.{n}_embeddings.weight" for n in ("word", "token_type")),
        *(f"{prefix}emb_ln.{p}" for p in ("weight", "bias")),
        *(
            f"{prefix}encoder.layers.0.{module}.{p}"
            for module in ("mixer.Wqkv", "mixer.out_proj", "norm1", "mlp.fc1", "mlp.fc2", "norm2")
            for p in ("weight", "bias")
        ),
        *("lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias"),
        *("lm_head.layer_norm.weight", "lm_head.layer_norm.bias"),
    }


def test_a_config_without_an_epsilon_gets_xlmrs(tmp_path: Path) -> None:
    content = {"model_type": "xlm-roberta", "auto_map": {}, "output_past": True, "vocab_size": 5}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert rotary_config(Checkpoint(tmp_path), 10.0, 7) == {
        **{"layer_norm_eps": 1e-12, "vocab_size": 5, "model_type": "jina_embeddings_v3"},
        "architectures": ["JinaEmbeddingsV3ForMaskedLM"],
        "max_position_embeddings": 7,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10.0},
    }


def test_averaged_experts_are_built_as_every_checkpoint(models: Path, tmp_path: Path) -> None:
    folder = (models / "routed").resolve()
    step = Downcycle(model=ModelRef(str(folder)))
    artifact = assert_built_as_promised(step, tmp_path, folder, "dense")
    assert artifact == Artifact(
        kind="model",
        size=SIZE,
        parents=(str(folder),),
        details={
            "made_by": "averaging the experts of",
            "downcycled": {**{"from": "emberge_routed", "to": "bert", "layers": [1]}},
        },
    )
    assert not (tmp_path / "out" / "modeling_emberge_routed.py").exists()
    before, after = (
        load_file(f / "model.safetensors") for f in (models / "bert", tmp_path / "out")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_load_of_experts_is_in_the_artifact(models: Path, tmp_path: Path) -> None:
    class Trained(Bench):
        def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
            return tmp_path, Artifact("model")

    logged = [0.9, 0.5, 0.4, 0.2]
    rows = [{"name": f"load/1/{i}", "value": 9.0} for i in range(4)]
    rows += [{"name": f"load/1/{i}", "value": value} for i, value in enumerate(logged)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    step = Downcycle(model=ModelRef(str(models / "routed")), load_of=StepRef("$trained"))
    details = step.run(Trained(tmp_path / "run")).details["downcycled"]
    assert details["load"] == {"1": logged}


def test_a_training_without_loads_is_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no load of layer 1"):
        read_load(tmp_path, RoutedModel(Checkpoint(models / "routed")))


def test_checks_count_parameters(models: Path, tmp_path: Path) -> None:
    context = Glance()
    list(Downcycle(model=ModelRef(str(models / "routed"))).check(context))
    size = size_of(models / "bert")
    notes = {"downcycling": [f"bert with {size:,} parameters"]}
    assert context.notes == notes
    step = Upcycle(model=ModelRef(str(models / "bert")), experts=4)
    context = Glance()
    assert list(step.check(context)) == []
    after = load_file(models / "routed" / "model.safetensors")
    experts = sum(tensor.numel() for name, tensor in after.items() if ".experts." in name)
    every = sum(tensor.numel() for tensor in after.values())
    assert context.notes == {
        "upcycling": [
            "bert becomes emberge_routed, which needs trust_remote_code=True: "
            "its class is modeling_emberge_routed.py in the folder",
            "layers 1: 4 experts, 2 a token",
            f"parameters {size:,} become {every:,}, {every - experts // 2:,} of them active for a token",
        ]
    }


def test_the_key_changes_with_all_that_decides_the_bytes(models: Path) -> None:
    one = of(models / "bert")
    routing = LayerRouting(3, (1,), 4, 2)
    plans = [
        Plan(one, [one], routing, ROUTED, 0, ("a",)),
        Plan(one, [one], routing, ROUTED, 0, ("b",)),
        Plan(one, [one], routing, NOMIC_V2, 0, ("a",)),
        Plan(one, [one], LayerRouting(3, (1,), 4, 1), ROUTED, 0, ("a",)),
        Plan(one, [one], routing, ROUTED, 1, ("a",)),
    ]
    assert len({json.dumps(plan.key) for plan in plans}) == len(plans)


# ── formats ─────────────────────────────────────────────────────────────────────────────────────


def test_a_native_config_is_the_dense_one_and_its_routing(models: Path) -> None:
    one = of(models / "qwen3")
    own = dict(one.config)
    found = NATIVE["qwen3_moe"].config(one, LayerRouting(3, (1,), 4, 2))
    common = {
        **own,
        **{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeModel"], "num_experts_per_tok": 2},
        **{"output_router_logits": False, "num_experts": 4, "moe_intermediate_size": 64},
        **{"norm_topk_prob": True, "use_sliding_window": False, ORIGIN: own},
    }
    assert found == {**common, "decoder_sparse_step": 2, "mlp_only_layers": []}
    found = NATIVE["qwen3_moe"].config(one, LayerRouting(3, (0, 1), 4, 2, normalize_gates=False))
    other = {"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [2]}
    assert found == {**common, **other}


def _refusals(
    name: str, routing: LayerRouting, folder: Path, kind: str, **config: Any
) -> list[str]:
    folder.mkdir(exist_ok=True)
    base = {"model_type": kind, "num_hidden_layers": routing.depth, "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps({**base, **config}))
    target = {**NATIVE, NOMIC_V2.name: NOMIC_V2}[name]
    return [*target.refusals(of(folder), routing)]


SOME, EVERY = LayerRouting(4, (1, 3), 4, 2), LayerRouting(4, (0, 1, 2, 3), 4, 2)
WINDOWS = {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}


@pytest.mark.parametrize(
    ("name", "kind", "routing", "config", "reasons"),
    [
        ("qwen3_moe", "qwen3", SOME, {}, []),
        ("qwen3_moe", "bert", SOME, {}, ["continues qwen3, not bert"]),
        ("qwen3_moe", "qwen3", SOME, {"mlp_bias": True}, ["no biases in its experts"]),
        ("qwen3_moe", "qwen3", SOME, WINDOWS, ["one window for all layers"]),
        ("qwen3_moe", "qwen3", SOME, {**WINDOWS, "use_sliding_window": False}, []),
        (
            "qwen3_moe",
            "qwen3",
            SOME,
            {"use_sliding_window": True, "max_window_layers": 2},
            ["window"],
        ),
        ("qwen3_moe", "qwen3", SOME, {"use_sliding_window": True, "max_window_layers": 0}, []),
        ("qwen3_moe", "qwen3", SOME, {"use_sliding_window": True}, []),
        ("mixtral", "qwen3", EVERY, {}, ["continues llama or mistral or eurobert, not qwen3"]),
        ("mixtral", "mistral", EVERY, {"sliding_window": 4}, []),
        ("mixtral", "llama", SOME, {}, ["layers: all"]),
        ("mixtral", "llama", EVERY, {"attention_bias": True}, ["no biases in its attention"]),
        ("mixtral", "llama", LayerRouting(1, (0,), 4, 2, False), {}, ["to a sum of 1"]),
        ("nomic_v2", "bert", SOME, {}, ["with the step rope"]),
        ("nomic_v2", "jina_embeddings_v3", SOME, {}, []),
        ("nomic_v2", "jina_embeddings_v3", EVERY, {}, ["layers: alternate"]),
        ("nomic_v2", "jina_embeddings_v3", SOME, {"hidden_act": "relu"}, ["this model relu"]),
    ],
)
def test_a_format_names_what_it_cannot_express(
    name: str,
    kind: str,
    routing: LayerRouting,
    config: dict[str, Any],
    reasons: list[str],
    tmp_path: Path,
) -> None:
    found = _refusals(name, routing, tmp_path, kind, **config)
    assert len(found) == len(reasons)
    for message, words in zip(found, reasons, strict=True):
        assert message.startswith(name)
        assert words in message


def test_a_class_that_would_change_the_model_is_not_chosen(models: Path) -> None:
    routing = LayerRouting(3, (1,), 4, 2)
    assert choose_target(of(models / "qwen3"), routing) is NATIVE["qwen3_moe"]
    assert choose_target(of(models / "bert"), routing) is ROUTED
    with pytest.raises(ValueError, match="with the step rope"):
        choose_target(of(models / "bert"), routing, "nomic_v2")


def test_an_unknown_type_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(CheckpointError, match=r"type 't5' are not known; those of bert, roberta, "):
        refuse_dense(of(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "emberge_routed"}))
    assert is_routed(of(tmp_path).config)
    with pytest.raises(CheckpointError, match=r"routed already \(emberge_routed\)"):
        refuse_dense(of(tmp_path))


def test_a_dense_model_knows_its_blocks(models: Path) -> None:
    one = of(models / "bert")
    assert (one.kind, one.depth, one.width, one.prefix) == ("bert", 3, 32, "")
    assert sorted(one.blocks) == [0, 1, 2]
    path, tensors = one.blocks[2]
    assert path == "encoder.layer.2."
    assert {*tensors} == {
        f"{name}.dense.{part}" for name in ("intermediate", "output") for part in ("weight", "bias")
    }
    assert one.block_of("embeddings.LayerNorm.weight") is None
    layers = LayerRouting(3, (1,), 4, 2)
    names = [spec.name for spec in routed_tensors(one, [one], layers, ROUTED)]
    assert names.count("encoder.layer.1.router.weight") == 1
    assert sum(".experts." in name for name in names) == 16
    assert len(names) == len(set(names)) == len(one.checkpoint.specs) - 4 + 17


# ── options ─────────────────────────────────────────────────────────────────────────────────────


MODEL = ModelRef("m")
BAD: list[tuple[type, dict[str, Any], str]] = [
    (Upcycle, {"model": MODEL, "experts": 4, "top_k": 5}, "'top_k' is 5, and there are 4 experts"),
    (Upcycle, {"model": MODEL, "members": PAIR[:1]}, "'members' has 1; a router needs at least 2"),
    (Upcycle, {"model": MODEL, "members": PAIR, "experts": 2}, "leave 'experts' out"),
    (
        Upcycle,
        {"model": MODEL, "members": PAIR, "top_k": 3},
        "'top_k' is 3, and there are 2 experts",
    ),
]


@pytest.mark.parametrize(("kind", "options", "words"), BAD)
def test_options_without_sense_are_refused(kind: type, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**options)


def test_options_at_their_ends_are_taken() -> None:
    assert Upcycle(model=ModelRef("m"), experts=2, top_k=2).expert_count == 2
    assert Upcycle(model=MODEL, members=PAIR, top_k=2).expert_count == 2
    assert Upcycle(model=MODEL).expert_count == 8


def test_layers_are_read_from_options() -> None:
    assert choose_layers((3, 0, 3), 4) == (0, 3)
    assert choose_layers("alternate", 12) == (1, 3, 5, 7, 9, 11)
    assert choose_layers("all", 3) == (0, 1, 2)
    for layers in ((4,), (-1,)):
        with pytest.raises(ValueError, match=f"layer {layers[0]} does not exist.* 0 to 3"):
            choose_layers(layers, 4)
    with pytest.raises(ValueError, match="none of the model's layers, 1 in number"):
        choose_layers("alternate", 1)
    routing = LayerRouting(4, (1, 3), 8, 2)
    assert (routing.complete, routing.dense_layers) == (False, [0, 2])
    assert LayerRouting(1, (0,), 8, 2).complete


# ── routers in a training ───────────────────────────────────────────────────────────────────────


def test_counts_survive_one_row() -> None:
    experts = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    loads = Loads(experts, torch.tensor([7.0, 8.0]), torch.tensor(9.0))
    assert loads.flat().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    again = Loads.of(loads.flat(), 2)
    assert again.experts.equal(experts)
    assert again.gates.tolist() == [7, 8]
    assert again.tokens == 9
    assert again.shares.equal(experts / 9)


def test_health_is_a_whole_table() -> None:
    health = RouterHealth((1, 3), 2, 1)
    counts = torch.tensor([500, 500, 1000, 0, 600, 900, 1000], dtype=torch.float64)
    assert health.values(counts) == {
        **{"load/1/0": 0.5, "load/1/1": 0.5, "load_entropy/1": pytest.approx(1.0)},
        **{"dead_experts/1": 0.0, "gate_sum/1": 0.6, "load/3/0": 1.0, "load/3/1": 0.0},
        **{"load_entropy/3": 0.0, "dead_experts/3": 1.0, "gate_sum/3": 0.9},
    }
    assert health.warnings(counts) == [
        "the router of layer 3 has collapsed: half of its 2 experts or more get less than 1.00% of the "
        "tokens; raise balance, or lower learning_rate"
    ]
    assert health.dead_share == 0.01
    assert RouterHealth((0,), 64, 2).dead_share == pytest.approx(0.1 * 2 / 64)
    alone = RouterHealth((0,), 1, 1).values(torch.tensor([4.0, 4.0, 4.0]))
    assert alone["load_entropy/0"] == 1.0
    assert alone["dead_experts/0"] == 0
    edge = torch.tensor([990, 10, 1, 1000], dtype=torch.float64)
    assert RouterHealth((0,), 2, 1).values(edge)["dead_experts/0"] == 0
    # One dead expert of four is in the values, and is no collapse.
    one = torch.tensor([1000, 600, 397, 3, 600, 1000], dtype=torch.float64)
    found = RouterHealth((3,), 4, 2)
    assert found.warnings(one) == []
    assert found.values(one)["dead_experts/3"] == 1
    parts = [0.5, 0.3, 0.1985, 0.0015]
    entropy = -sum(part * math.log(part) for part in parts) / math.log(4)
    assert found.values(one)["load_entropy/3"] == pytest.approx(entropy)
    assert found.values(2 * one) == pytest.approx(found.values(one))


@pytest.mark.parametrize("layers", [2, 32, 33])
def test_a_heat_map_has_a_row_an_expert_up_to_64(layers: int) -> None:
    health = RouterHealth(tuple(range(layers)), 2, 1)
    counts = torch.tensor([3.0, 1.0] * layers + [2.0] * layers + [4.0], dtype=torch.float64)
    values = health.values(counts)
    (found,) = health.figures([(10, values), (2000, values)])
    if layers <= 32:
        rows = [f"layer {i}, expert {e}" for i in range(layers) for e in (0, 1)]
        shown: list[list[Any]] = [[0.75] * 2, [0.25] * 2] * layers
        title = "Load of experts over the steps"
        caption = "Share of the tokens that each expert gets, by optimizer step; 0.5 is even."
    else:
        rows = [f"layer {i}" for i in range(layers)]
        entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)
        shown = [[pytest.approx(entropy)] * 2] * layers
        title = "Entropy of experts' load"
        caption = "By optimizer step: 1 where all experts of a layer get equally many tokens."
    assert found == {
        "title": title,
        "heat_map": {"rows": rows, "columns": ["10", "2,000"], "values": shown},
        "caption": caption,
    }


class Router(torch.nn.Module):
    def forward(self, states: torch.Tensor, more: int = 0) -> tuple[torch.Tensor, ...]:
        return states, states + 1, states.argmax(-1, keepdim=True)


def test_taps_keep_what_routers_give_while_they_are_open() -> None:
    layers = torch.nn.ModuleList(torch.nn.ModuleDict({"router": Router()}) for _ in range(2))
    model = torch.nn.ModuleDict({"layers": layers, "other": torch.nn.Identity()})
    taps = RouterTaps(model, "router")
    assert taps.layers == [0, 1]
    states = torch.ones(200, 4)
    model.eval()
    with taps:
        for number in (1, 0):
            layers[number]["router"](states)  # type: ignore[index]
        assert [*taps.routings] == [0, 1]
        assert taps.routings[0].logits.equal(states)
        assert taps.routings[0].chosen.shape == (200, 1)
    assert taps.routings == {}
    layers[0]["router"](states)  # type: ignore[index]
    assert taps.routings == {}


def test_routers_have_one_place_by_type() -> None:
    assert {
        **dict.fromkeys(("qwen3_moe", "qwen2_moe", "mixtral"), "mlp.gate"),
        "granitemoe": "block_sparse_moe.router",
        "emberge_routed": "router",
    } == ROUTERS


def test_the_backbone_refuses_a_model_without_routers(models: Path, tmp_path: Path) -> None:
    (problem,) = Routed(inner=TextEncoder()).describe(models / "bert").problems
    assert f"{models / 'bert' / 'config.json'}: a model of type 'bert' has no routers" in problem
    assert ", ".join(ROUTERS) in problem
    assert "upcycle" in problem
    assert Routed(inner=TextEncoder()).describe(models / "routed").problems == ()


NOMIC_DEFAULTS = {
    **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"]},
    **{"activation_function": "gelu", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    **{"expert_choice_router": False, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5},
    **{"max_trained_positions": 2048, "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    **{"moe_every_n_layers": 2, "moe_normalize_expert_weights": 1, "moe_top_k": 2},
    **{"n_embd": 8, "n_head": 2, "n_inner": 16, "n_layer": 4, "n_positions": 2048},
    **{"num_experts": 4, "num_shared_experts": 0, "pad_token_id": 1},
    **{"pad_vocab_size_multiple": 64, "prenorm": False, "qkv_proj_bias": True},
    **{"rotary_emb_base": 10_000.0, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
    **{"type_vocab_size": 1, "use_rms_norm": False, "vocab_size": 128},
}


def test_nomics_config_has_the_rotary_models_numbers(tmp_path: Path) -> None:
    needed = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    needed |= {"vocab_size": 65, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(needed))
    found = NOMIC_V2.config(of(tmp_path), SOME)
    remote = "nomic-ai/nomic-bert-2048"
    assert found.pop("auto_map") == {
        "AutoConfig": f"{remote}--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": f"{remote}--modeling_hf_nomic_bert.NomicBertModel",
    }
    assert found == NOMIC_DEFAULTS
    other = {
        **{"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.2},
        **{"initializer_range": 0.5, "layer_norm_eps": 0.25, "max_position_embeddings": 99},
        **{"pad_token_id": 3, "type_vocab_size": 2, "rope_parameters": {"rope_theta": 7.0}},
    }
    (tmp_path / "config.json").write_text(json.dumps({**needed, **other, "vocab_size": 64}))
    found = NOMIC_V2.config(of(tmp_path), LayerRouting(4, (1, 3), 4, 2, normalize_gates=False))
    del found["auto_map"]
    assert found == {
        **NOMIC_DEFAULTS,
        **{"attn_pdrop": 0.1, "embd_pdrop": 0.2, "resid_pdrop": 0.2, "initializer_range": 0.5},
        **{"layer_norm_epsilon": 0.25, "max_trained_positions": 99, "n_positions": 99},
        **{"pad_token_id": 3, "type_vocab_size": 2, "rotary_emb_base": 7.0, "vocab_size": 64},
        "moe_normalize_expert_weights": False,
    }
    assert NOMIC_V2.loading == f"its class is code of {remote}"
    assert (NATIVE["mixtral"].loading, NATIVE["mixtral"].code) == ("", None)
