"""A model of some layers of another: unchanged weights, renumbered, in a folder that plain classes load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge import CheckpointError, ModelRef
from emberge.model_folder import Checkpoint
from emberge_smaller import CutLayers, LayerStack
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.decoders import decoder
from tests.support.glance import Glance
from tests.support.json_files import changing, edit
from tests.support.whole import files

LAYERS = 4
# ModernBERT and Gemma 3 have layers of two kinds; Gemma's window is of 8 tokens, a text of 15.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma3": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "modernbert": {"local_attention": 4},
    "mpnet": {"max_position_embeddings": 66},
}
TOKENS = torch.arange(5, 35).view(2, 15)


def model_of(folder: Path, architecture: str) -> Path:
    """Write a tiny model of four layers."""
    changes = {"num_hidden_layers": LAYERS, **CHANGES.get(architecture, {})}
    if architecture != "mpnet":
        return tiny.checkpoint(folder, architecture, **changes)
    decoder(folder, architecture, **changes)
    tiny.write_modules(folder, 32)
    return folder


def cut(folder: Path, root: Path, layers: Any) -> tuple[Path, dict[str, Any]]:
    """Run the step; return the result's folder and the artifact's details."""
    bench = Bench(root)
    artifact = CutLayers(model=ModelRef(str(folder)), layers=layers).run(bench)
    return bench.folder, dict(artifact.details)


def loaded(folder: Path, cls: str = "AutoModel") -> Any:
    """Open a model, of which no tensor is missing or left over."""
    model, report = getattr(transformers, cls).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def cut_by_hand(folder: Path, numbers: Sequence[int]) -> Any:
    """The opened model with the other layers taken out of its list of modules."""
    model = loaded(folder)
    (name, stack), *_ = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == LAYERS
    ]
    parent = model.get_submodule(name.rpartition(".")[0]) if "." in name else model
    setattr(parent, name.rpartition(".")[2], torch.nn.ModuleList(stack[n] for n in numbers))
    model.config.num_hidden_layers = len(numbers)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[n] for n in numbers]
    return model


def states(model: Any) -> Tensor:
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    with torch.no_grad():
        found: Tensor = model(TOKENS, **options).last_hidden_state
    return found


@pytest.mark.parametrize("architecture", ["bert", "mpnet", "modernbert", "qwen3", "gemma3"])
def test_the_result_computes_the_chosen_layers(architecture: str, tmp_path: Path) -> None:
    folder = model_of(tmp_path / "whole", architecture)
    out, details = cut(folder, tmp_path / "run", (0, 3))
    assert details["layers"] == [0, 3]
    assert details["layers_before"] == LAYERS
    found = states(loaded(out))
    assert torch.equal(found, states(cut_by_hand(folder, (0, 3))))
    assert not torch.equal(found, states(cut_by_hand(folder, (0, 2))))


def test_all_other_files_stay(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "whole", "bert")
    out, _ = cut(folder, tmp_path / "run", (1, 3))
    before, after = files(folder), files(out)
    assert {name for name in before if before[name] != after.get(name)} == {
        "config.json",
        "model.safetensors",
    }
    changed = json.loads(after["config.json"])
    assert changed == {**json.loads(before["config.json"]), "num_hidden_layers": 2}
    assert SentenceTransformer(str(out), device="cpu").encode(["the list"]).shape == (1, 32)


def test_heads_and_modules_with_weights_stay(tmp_path: Path) -> None:
    folder = tiny.projected(tmp_path / "projected")
    out, _ = cut(folder, tmp_path / "run", (2,))
    for module in ("2_Dense", "3_LayerNorm", "4_Dense"):
        before = load_file(folder / module / "model.safetensors")
        after = load_file(out / module / "model.safetensors")
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert SentenceTransformer(str(out), device="cpu").encode(["the list"]).shape == (1, 8)
    masked = tiny.transformer(tmp_path / "masked", "AutoModelForMaskedLM", "bert")
    out, _ = cut(masked, tmp_path / "run2", (0, 2))
    before, after = (load_file(masked / "model.safetensors"), load_file(out / "model.safetensors"))
    assert torch.equal(
        after["cls.predictions.transform.dense.weight"],
        before["cls.predictions.transform.dense.weight"],
    )
    assert torch.equal(
        after["bert.encoder.layer.1.output.dense.weight"],
        before["bert.encoder.layer.2.output.dense.weight"],
    )
    loaded(out, "AutoModelForMaskedLM")


def test_a_vision_models_text_trunk_is_cut_and_its_tower_stays(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "vl", "qwen3-vl", sentence_transformer=False)
    out, _ = cut(folder, tmp_path / "run", (1, 2))
    config = json.loads((out / "config.json").read_text())
    assert (config["text_config"]["num_hidden_layers"], config["vision_config"]["depth"]) == (2, 3)
    before, after = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    towers = [name for name in before if name.startswith("visual.")]
    assert towers
    assert all(torch.equal(before[name], after[name]) for name in towers)
    loaded(out)


def test_an_old_config_with_an_interval_gets_a_list_of_layer_kinds(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "whole", "modernbert")
    config = json.loads((folder / "config.json").read_text())
    kinds = config.pop("layer_types")
    (folder / "config.json").write_text(json.dumps({**config, "global_attn_every_n_layers": 3}))
    assert transformers.AutoConfig.from_pretrained(folder).layer_types == kinds
    out, _ = cut(folder, tmp_path / "run", (0, 2, 3))
    assert kinds == ["full_attention", *["sliding_attention"] * 2, "full_attention"]
    assert json.loads((out / "config.json").read_text())["layer_types"] == [
        "full_attention",
        "sliding_attention",
        "full_attention",
    ]


@pytest.mark.parametrize(
    ("layers", "chosen"), [(1, (3,)), (2, (1, 3)), (3, (0, 1, 3)), (4, (0, 1, 2, 3))]
)
def test_layers_are_spread_evenly_and_end_in_the_last(
    layers: int, chosen: tuple[int, ...], tmp_path: Path
) -> None:
    folder = model_of(tmp_path / "whole", "bert")
    assert LayerStack(Checkpoint(folder)).spread_layers(layers) == chosen


def test_an_unlike_first_layer_is_always_kept(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "whole", "modernbert")
    stack = LayerStack(Checkpoint(folder))
    assert stack.spread_layers(2) == (0, 3)
    assert stack.spread_layers(3) == (0, 1, 3)
    with pytest.raises(CheckpointError, match="and 2 to 4"):
        stack.spread_layers(1)
    with pytest.raises(CheckpointError, match=r"write \[0, 1, 3\]"):
        stack.choose_layers((1, 3))


@pytest.mark.parametrize(
    ("layers", "fix"),
    [
        ((0, 7), "layers 0, 7 are not some of its 4 layers, 0 to 3"),
        ((0, 4), r"write \[0\]"),
        ((-1,), "layers -1 are not some of its 4 layers"),
        ((2, 0), r"write \[0, 2\]"),
        ((1, 1), r"each once and in their order; write \[1\]"),
        ((), "no layers are named; it has 4"),
        (5, "it has 4, and 1 to 4 can be kept"),
        (0, "and 1 to 4"),
    ],
)
def test_layers_that_make_no_model_are_refused_by_check_and_run(
    layers: Any, fix: str, tmp_path: Path
) -> None:
    folder = model_of(tmp_path / "whole", "bert")
    (fault,) = CutLayers(model=ModelRef(str(folder)), layers=layers).check(Glance())
    assert (fault.severity, fault.where) == ("error", "layers")
    with pytest.raises(CheckpointError, match=fix) as raised:
        cut(folder, tmp_path / "run", layers)
    assert str(raised.value) == fault.message
    assert not any((tmp_path / "run" / "out").glob("*"))


def test_a_model_with_shared_layers_or_a_decoder_is_refused(tmp_path: Path) -> None:
    size = tiny.write_tokenizer(tmp_path)
    albert = transformers.AlbertConfig(
        vocab_size=size, hidden_size=32, num_attention_heads=4, intermediate_size=64
    )
    transformers.AlbertModel(albert).save_pretrained(tmp_path / "albert")
    with pytest.raises(CheckpointError, match="layers share weights"):
        _ = LayerStack(Checkpoint(tmp_path / "albert")).count
    t5 = transformers.T5Config(
        vocab_size=size, d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2
    )
    transformers.T5Model(t5).save_pretrained(tmp_path / "t5")
    with pytest.raises(CheckpointError, match="encoder and a decoder"):
        _ = LayerStack(Checkpoint(tmp_path / "t5")).count
    bert = shutil.copytree(model_of(tmp_path / "bert", "bert"), tmp_path / "unknown")
    with changing(bert / "config.json") as config:
        del config["num_hidden_layers"]
        config["model_type"] = "static"
    with pytest.raises(CheckpointError, match="no known stack of layers"):
        _ = LayerStack(Checkpoint(bert)).count


def test_layers_that_differ_by_their_place_are_refused(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "moe", "qwen3_moe", num_hidden_layers=4, decoder_sparse_step=2)
    with pytest.raises(CheckpointError, match="differ in their tensors by their place"):
        LayerStack(Checkpoint(folder)).choose_layers((0, 1))


def test_a_config_with_an_absurd_number_of_layers_is_refused(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "whole", "bert")
    edit(folder, "config.json", num_hidden_layers=10**12)
    with pytest.raises(CheckpointError, match="its weights have 4 layers"):
        _ = LayerStack(Checkpoint(folder)).count
