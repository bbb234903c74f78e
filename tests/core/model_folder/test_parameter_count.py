"""Parameters are counted from headers: those of all experts, and those that one token uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge.contracts import ParameterCount
from emberge.model_folder import Checkpoint, count_parameters, expert_count

from tests.support.model_headers import write_hole


def folder_of(root: Path, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> Checkpoint:
    """A model of these shapes, whose file has a header and no byte of weights on the disk."""
    write_hole(root / "model.safetensors", shapes)
    (root / "config.json").write_text(json.dumps(config))
    return Checkpoint(root)


def nomic_v2() -> dict[str, tuple[int, ...]]:
    d, layers, inner, words, experts = 768, 12, 3072, 250_048, 8
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, d),
        "embeddings.token_type_embeddings.weight": (1, d),
        "emb_ln.weight": (d,),
        "emb_ln.bias": (d,),
    }
    for i in range(layers):
        at = f"encoder.layers.{i}"
        shapes |= {f"{at}.attn.Wqkv.weight": (3 * d, d), f"{at}.attn.Wqkv.bias": (3 * d,)}
        shapes |= {f"{at}.attn.out_proj.weight": (d, d), f"{at}.attn.out_proj.bias": (d,)}
        shapes |= {f"{at}.norm{n}.{part}": (d,) for n in (1, 2) for part in ("weight", "bias")}
        if i % 2:
            shapes[f"{at}.mlp.router.layer.weight"] = (experts, d)
            shapes |= {f"{at}.mlp.experts.mlp.w{n}": (experts * inner, d) for n in (1, 2)}
            shapes[f"{at}.mlp.experts.bias"] = (d,)
        else:
            shapes |= {f"{at}.mlp.fc1.weight": (inner, d), f"{at}.mlp.fc1.bias": (inner,)}
            shapes |= {f"{at}.mlp.fc2.weight": (d, inner), f"{at}.mlp.fc2.bias": (d,)}
    return shapes


def test_nomics_v2_model_has_the_published_numbers(tmp_path: Path) -> None:
    """T-C8."""
    config = {"model_type": "nomic_bert", "num_experts": 8, "moe_top_k": 2, "n_embd": 768}
    found = count_parameters(folder_of(tmp_path, config, nomic_v2()))
    assert (found.total, found.active, found.computed) == (475_292_928, 305_423_616, 113_386_752)


TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 90,
}
EXPERTS = {
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "head_dim": 8,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 1},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_a_token_uses_as_many_experts_as_the_config_says(kind: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(kind, **TINY, **EXPERTS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config)  # its head does not embed
    model.save_pretrained(tmp_path)
    trunk = dict(model.base_model.named_parameters())
    total = sum(p.numel() for p in trunk.values())
    experts = EXPERTS[kind].get("num_experts") or EXPERTS[kind]["num_local_experts"]
    # Weights of experts have one dimension more than all others.
    routed = sum(p.numel() for p in trunk.values() if p.dim() == 3)
    assert routed > 0
    active = total - routed + routed * EXPERTS[kind]["num_experts_per_tok"] // experts
    found = count_parameters(Checkpoint(tmp_path))
    assert (found.total, found.active) == (total, active)
    assert found.computed == active - 90 * 32


def test_experts_in_place_of_a_dense_models_blocks_are_counted_one_by_one(tmp_path: Path) -> None:
    dense = transformers.BertConfig(
        **{key: TINY[key] for key in TINY if key != "num_key_value_heads"},
        max_position_embeddings=16,
    )
    shapes = {n: tuple(t.shape) for n, t in transformers.BertModel(dense).state_dict().items()}
    whole = sum(torch.Size(shape).numel() for shape in shapes.values())
    routed: dict[str, tuple[int, ...]] = {}
    block = 0
    for name, shape in shapes.items():
        place, _, rest = name.partition("encoder.layer.1.")
        if rest.startswith(("intermediate.", "output.dense.")):
            block += torch.Size(shape).numel()
            routed |= {f"{place}encoder.layer.1.mlp.experts.{e}.{rest}": shape for e in range(4)}
        else:
            routed[name] = shape
    routed["encoder.layer.1.mlp.router.weight"] = (4, 32)
    config = {
        "model_type": "emberge_routed",
        "num_experts": 4,
        "top_k": 1,
        "inner": dense.to_dict(),
    }
    found = count_parameters(folder_of(tmp_path, config, routed))
    assert found.total == whole + 3 * block + 4 * 32
    assert found.active == whole + 4 * 32


def test_all_parameters_of_a_dense_model_are_active(bert: Path) -> None:
    found = count_parameters(Checkpoint(bert))
    model = transformers.AutoModel.from_pretrained(bert)
    total = sum(p.numel() for p in model.parameters())
    assert (found.total, found.active) == (total, total)
    assert found.computed == total - model.get_input_embeddings().weight.numel()


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_experts": 8}, 8),
        ({"num_local_experts": 4, "num_experts": None}, 4),
        ({"n_routed_experts": 16}, 16),
        ({"moe_num_experts": 6}, 6),
        ({"text_config": {"num_experts": 3}}, 3),
        ({"num_experts": 0}, 0),
        ({"hidden_size": 8}, 0),
    ],
)
def test_the_number_of_experts_has_several_names(config: dict[str, Any], experts: int) -> None:
    assert expert_count(config) == experts


def test_a_static_models_table_multiplies_no_token(tmp_path: Path) -> None:
    checkpoint = folder_of(tmp_path, {}, {"embedding.weight": (90, 32)})
    assert count_parameters(checkpoint) == ParameterCount(90 * 32, 90 * 32, 90 * 32)
    kind = "sentence_transformers.models.StaticEmbedding"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert count_parameters(Checkpoint(tmp_path)) == ParameterCount(90 * 32, 90 * 32, 0)
