"""Routed and rotary models: their files, facts and messages; options; router health."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Artifact, CheckpointError, Model, ModelRef, Plugins, Step, load_plugins
from emberge.contracts import BaseFacts, Figure, HeatMap
from emberge.model_folder import Checkpoint
from emberge_encoder import TextEncoder
from emberge_moe.balance import RouterHealth
from emberge_moe.dense_model import DenseModel, require_dense
from emberge_moe.rope_step import Rope, build_rotary_config
from emberge_moe.routed_backbone import Routed
from emberge_moe.routed_encoder import ROUTERS, RouterTaps
from emberge_moe.routed_format import CODE, LayerRouting, choose_layers
from emberge_moe.upcycle_plan import UpcyclePlan
from emberge_moe.upcycle_step import Upcycle
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.routable import dense


@dataclass
class Watched(Bench):
    """A bench that notes the names in its work folder at each report of progress."""

    at_work: set[str] = field(default_factory=set)

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        super().progress(done, total, unit, note)
        self.at_work |= {path.name for path in self.work.iterdir()}


def assert_built_as_promised(step: Step, root: Path, folder: Path, name: str) -> Artifact:
    """Run a step on the model in `folder`; return its artifact.

    It works in the folder `result` of its work, reports every tensor's bytes under its name, writes the
    provenance of the step `name` into the headers, and hands on how many examples the model was trained with.
    """
    seed = getattr(step, "seed", None) or 0  # as the runner gives it
    watched = Watched(root, seed=seed, provenance={"step": name, "fingerprint": "of the run"})
    trained = Artifact("model", size=1234)
    watched.many[str(folder)] = [Model("the model", folder, "its content", trained)]
    artifact = step.run(watched)
    with safe_open(watched.folder / "model.safetensors", "pt") as file:
        names, header = set(file.keys()), json.loads(file.metadata()["emberge"])
    assert header["step"] == name
    assert "result" in watched.at_work
    assert {unit for _, _, unit, _ in watched.told} == {"bytes"}
    assert {note for _, _, _, note in watched.told} - {""} <= names
    assert watched.told[-1][0] == watched.told[-1][1] > 0
    assert watched.told[-1][3] in names
    assert (artifact.kind, artifact.size) == ("model", 1234)
    assert ModelRef(str(folder)).text in artifact.parents
    return artifact


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


def test_upcycle_writes_the_promised_files_and_facts(models: Path, tmp_path: Path) -> None:
    folder = models / "bert"
    step = Upcycle(
        model=ModelRef(str(folder)), experts=4, top_k=3, normalize_gates=False, layers=(2, 0)
    )
    artifact = assert_built_as_promised(step, tmp_path, folder, "upcycled")
    out = tmp_path / "out"
    experts = sum(
        t.numel() for n, t in load_file(out / "model.safetensors").items() if ".experts." in n
    )
    details = dict(artifact.details["upcycled"])
    assert artifact.parents == (str(folder),)
    assert artifact.made_by == "upcycling"
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
    assert (out / "modeling_emberge_routed.py").read_bytes() == CODE.read_bytes()


def test_rope_writes_the_promised_files_and_facts(tmp_path: Path) -> None:
    folder = tiny.transformer(
        tmp_path / "xlmr", "AutoModelForMaskedLM", "xlm-roberta", num_hidden_layers=1
    )
    step = Rope(model=ModelRef(str(folder)), rope_theta=5000.0, max_length=99)
    artifact = assert_built_as_promised(step, tmp_path / "run", folder, "rotary")
    assert artifact.parents == (str(folder),)
    details = dict(artifact.details)
    assert "mlm" in details.pop("to_be_adapted")
    assert details == {"rope_theta": 5000.0, "max_length": 99}
    assert artifact.made_by == "giving rotary positions to"
    assert artifact.base == BaseFacts("the model", str(folder), "its content")
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


def test_a_config_without_an_epsilon_gets_that_of_xlmr(tmp_path: Path) -> None:
    content = {"model_type": "xlm-roberta", "auto_map": {}, "output_past": True, "vocab_size": 5}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert build_rotary_config(Checkpoint(tmp_path), 10.0, 7) == {
        **{"layer_norm_eps": 1e-12, "vocab_size": 5, "model_type": "jina_embeddings_v3"},
        "architectures": ["JinaEmbeddingsV3ForMaskedLM"],
        "max_position_embeddings": 7,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10.0},
    }


def test_the_plans_key_changes_with_everything_that_decides_the_bytes(models: Path) -> None:
    one = of(models / "bert")
    routing = LayerRouting((1,), 4, 2)
    plans = [
        UpcyclePlan(one, [one], routing, 0, ("a",)),
        UpcyclePlan(one, [one], routing, 0, ("b",)),
        UpcyclePlan(one, [one], LayerRouting((1,), 4, 1), 0, ("a",)),
        UpcyclePlan(one, [one], routing, 1, ("a",)),
    ]
    assert len({json.dumps(plan.key) for plan in plans}) == len(plans)


# ── formats ─────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_or_routed_model_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(CheckpointError, match=r"type 't5' are not known; those of bert, roberta, "):
        require_dense(of(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "emberge_routed"}))
    with pytest.raises(CheckpointError, match=r"routed already \(emberge_routed\)"):
        require_dense(of(tmp_path))


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
def test_contradictory_options_are_refused(kind: type, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**options)


def test_options_at_their_limits_are_accepted() -> None:
    assert Upcycle(model=ModelRef("m"), experts=2, top_k=2).expert_count == 2
    assert Upcycle(model=MODEL, members=PAIR, top_k=2).expert_count == 2
    assert Upcycle(model=MODEL).expert_count == 8


def test_each_form_of_the_option_layers_chooses_its_layers() -> None:
    assert choose_layers((3, 0, 3), 4) == (0, 3)
    assert choose_layers("alternate", 12) == (1, 3, 5, 7, 9, 11)
    assert choose_layers("all", 3) == (0, 1, 2)
    for layers in ((4,), (-1,)):
        with pytest.raises(ValueError, match=f"layer {layers[0]} does not exist.* 0 to 3"):
            choose_layers(layers, 4)
    with pytest.raises(ValueError, match="none of the model's layers, 1 in number"):
        choose_layers("alternate", 1)


# ── routers in a training ───────────────────────────────────────────────────────────────────────


def test_router_health_measures_loads_entropy_and_dead_experts() -> None:
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


@pytest.mark.parametrize("layers", [32, 33])
def test_a_heat_map_has_a_row_for_each_expert_up_to_64_rows(layers: int) -> None:
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
    heat_map = HeatMap(rows=rows, columns=["10", "2,000"], values=shown)
    assert found == Figure(title=title, heat_map=heat_map, caption=caption)


class Router(torch.nn.Module):
    def forward(self, states: torch.Tensor, more: int = 0) -> tuple[torch.Tensor, ...]:
        return states, states + 1, states.argmax(-1, keepdim=True)


def test_taps_keep_routers_outputs_only_inside_the_block() -> None:
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


def test_the_backbone_refuses_a_model_without_routers(models: Path, tmp_path: Path) -> None:
    (problem,) = Routed(inner=TextEncoder()).describe(models / "bert").problems
    assert (
        f"{models / 'bert' / 'config.json'}: a model of type 'bert' has no known routers" in problem
    )
    assert ", ".join(ROUTERS) in problem
    assert "upcycle" in problem
    assert Routed(inner=TextEncoder()).describe(models / "routed").problems == ()
