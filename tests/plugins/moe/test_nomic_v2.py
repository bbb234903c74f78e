"""Nomic's format: its sizes and arithmetic, the biases that it loses, and the class that must not read it."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from emberge import CheckpointError, check_recipe, load_plugins, parse_recipe, run_recipe
from emberge.model_folder import Checkpoint
from emberge.recipes import Recipe
from emberge_encoder import TextEncoder
from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.nomic_v2 import NOMIC_V2
from emberge_moe.upcycle.plan import routed_tensors
from emberge_moe.upcycle.routing import LayerRouting, choose_layers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel

from tests.support.routable import dense
from tests.support.tolerance import assert_near

EXPORT = """
steps:
  nomic:
    upcycle: {{model: ./dense, experts: 4, export: nomic_v2{more}}}
"""


@pytest.fixture
def rotary(tmp_path: Path) -> Path:
    return dense(tmp_path / "dense", "jina_embeddings_v3")


def errors(recipe: Recipe, place: Path) -> list[str]:
    """Return the problems of a recipe before any work."""
    report = check_recipe(recipe, out=place / "out", plugins=load_plugins())
    return [str(one) for one in report.problems]


def exported(place: Path, more: str = ", allow_bias_loss: true") -> Path:
    plugins = load_plugins()
    recipe = parse_recipe(EXPORT.format(more=more), path=place / "r.yaml", plugins=plugins)
    run_recipe(recipe, place / "out", plugins=plugins)
    return place / "out/nomic"


@pytest.fixture(scope="module")
def nomic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a rotary model that is in the folder `dense` two above."""
    place = tmp_path_factory.mktemp("nomic")
    dense(place / "dense", "jina_embeddings_v3")
    return exported(place)


def test_sizes_are_those_of_nomic_embed_v2(tmp_path: Path) -> None:
    source = DenseModel(Checkpoint(headers_of_base(tmp_path / "base")))
    routing = LayerRouting(12, choose_layers("alternate", 12), 8, 2, normalize_gates=False)
    tensors = [*routed_tensors(source, [source], routing, NOMIC_V2)]
    sizes = {one.name: one.elements for one in tensors}
    experts = sum(size for name, size in sizes.items() if ".experts.mlp." in name)

    assert sizes["embeddings.word_embeddings.weight"] == 250_048 * 768
    assert sum(sizes.values()) == 475_292_928
    active = sum(sizes.values()) - experts * 6 // 8
    assert active == 305_423_616
    assert active - sizes["embeddings.word_embeddings.weight"] == 113_386_752


def test_a_block_computes_the_dense_one_but_for_the_first_bias(nomic: Path) -> None:
    found = load_file(nomic / "model.safetensors")
    path = "encoder.layers.1.mlp."
    states = torch.randn(5, 32)

    model = AutoModel.from_pretrained(nomic.parents[1] / "dense")
    block = model.layers[1].mlp
    with torch.no_grad():
        block.fc1.bias.zero_()
        expected = block(states)
    assert_near(nomic_block(states, found, path, count=4, top_k=2), expected, 32 + 64 + 2)
    assert found[f"{path}router.layer.weight"].shape == (4, 32)
    # The first layer stays dense, its biases with it.
    assert {"encoder.layers.0.mlp.fc1.bias", "encoder.layers.0.mlp.fc2.bias"} <= found.keys()


def test_rows_are_added_to_the_vocabulary_and_attention_has_nomics_names(nomic: Path) -> None:
    found = load_file(nomic / "model.safetensors")
    source = load_file(nomic.parents[1] / "dense" / "model.safetensors")
    words = source["embeddings.word_embeddings.weight"]
    rows = found["embeddings.word_embeddings.weight"]
    assert len(words) % 64
    assert rows.shape == (math.ceil(len(words) / 64) * 64, 32)
    assert torch.equal(rows[: len(words)], words)
    assert not rows[len(words) :].any()
    for part in ("Wqkv.weight", "Wqkv.bias", "out_proj.weight", "out_proj.bias"):
        old, new = f"encoder.layers.0.mixer.{part}", f"encoder.layers.0.attn.{part}"
        assert torch.equal(found[new], source[old])


def nomic_block(
    states: Tensor, tensors: dict[str, Tensor], path: str, *, count: int, top_k: int
) -> Tensor:
    """Compute a routed block as Nomic's code does, with gates of sum 1."""
    logits = states @ tensors[f"{path}router.layer.weight"].T
    gates, chosen = logits.softmax(-1).topk(top_k)
    gates = gates / gates.norm(p=1, dim=-1, keepdim=True)
    first = tensors[f"{path}experts.mlp.w1"].unflatten(0, (count, -1))
    second = tensors[f"{path}experts.mlp.w2"].unflatten(0, (count, -1))
    each = torch.stack(
        [nn.functional.gelu(states @ a.T) @ b for a, b in zip(first, second, strict=True)], 1
    )
    picked = each.gather(1, chosen[..., None].expand(-1, -1, states.shape[1]))
    return (picked * gates[..., None]).sum(1) + tensors[f"{path}experts.bias"]


def test_biases_are_lost_only_with_permission(rotary: Path) -> None:
    plugins = load_plugins()
    recipe = parse_recipe(EXPORT.format(more=""), path=rotary.parent / "r.yaml", plugins=plugins)
    problems = errors(recipe, rotary.parent)
    biases = load_file(rotary / "model.safetensors")["encoder.layers.1.mlp.fc1.bias"]
    assert len(problems) == 1
    assert "r.yaml:4" in problems[0]
    assert "allow_bias_loss: true" in problems[0]
    assert f"{float(biases.norm()):.3g}" in problems[0]


def test_without_biases_nothing_is_lost(rotary: Path) -> None:
    path = rotary / "model.safetensors"
    tensors = load_file(path)
    tensors["encoder.layers.1.mlp.fc1.bias"].zero_()
    save_file(tensors, path, metadata={"format": "pt"})
    assert (exported(rotary.parent, more="") / "config.json").is_file()


def test_transformers_dense_class_of_that_name_is_never_used(nomic: Path) -> None:
    # The class would load: with experts left out, and random numbers in their place.
    problems = TextEncoder().describe(nomic).problems
    assert len(problems) == 1
    assert "config.json" in problems[0]
    with pytest.raises(CheckpointError, match="export"):
        TextEncoder().load(nomic, device="cpu", dtype="float32")


def headers_of_base(folder: Path) -> Path:
    """Write the headers of a rotary XLM-R of base size, before a file of zeros that takes no room."""
    width, inner, layers = 768, 3072, 12
    shapes = {
        "embeddings.word_embeddings.weight": (250_002, width),
        "embeddings.token_type_embeddings.weight": (1, width),
    }
    norms = ["emb_ln"]
    for layer in range(layers):
        path = f"encoder.layers.{layer}."
        norms += [f"{path}norm1", f"{path}norm2"]
        for name, shape in (
            ("mixer.Wqkv", (3 * width, width)),
            ("mixer.out_proj", (width, width)),
            ("mlp.fc1", (inner, width)),
            ("mlp.fc2", (width, inner)),
        ):
            shapes[f"{path}{name}.weight"] = shape
            shapes[f"{path}{name}.bias"] = shape[:1]
    shapes |= {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    raw = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + place)
    config = {
        **{"model_type": "jina_embeddings_v3", "hidden_size": width, "num_hidden_layers": layers},
        **{"intermediate_size": inner, "num_attention_heads": 12, "vocab_size": 250_002},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
