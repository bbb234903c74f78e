"""The format of Nomic Embed v2 (arXiv:2502.07972), from XLM-R with rotary positions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.expert_tensors import Averaged, FilledTensor, Joined, Transposed
from emberge_moe.upcycle.routing import LayerRouting, RoutedBlock, RoutedTarget

if TYPE_CHECKING:
    from emberge.tensor_files import TensorSpec
    from torch import Tensor

_SOURCE = "jina_embeddings_v3"
_CODE = "nomic-ai/nomic-bert-2048"
# Rows of the vocabulary come in multiples of this.
_VOCABULARY = 64
_ATTENTION = ((".mixer.Wqkv.", ".attn.Wqkv."), (".mixer.out_proj.", ".attn.out_proj."))


@dataclass(frozen=True, kw_only=True)
class NomicV2(RoutedTarget):
    """Nomic's own format, which other programs read; its class is Nomic's code, not part of transformers.

    A routed block has one bias, which is added after the sum over gates, and none inside the experts: so the
    biases of the first linear layer are lost. The format has no pooler and no head either. The vocabulary is
    padded with zeros to a multiple of 64.
    """

    @property
    def loading(self) -> str:
        return f"its class is code of {_CODE}"

    def refusals(self, dense: DenseModel, routing: LayerRouting) -> Iterator[str]:
        if dense.kind != _SOURCE:
            yield (
                f"{self.name} is written from XLM-R with rotary positions ({_SOURCE}), not from "
                f"{dense.kind}; make that with the step rope"
            )
            return
        if routing.layers != tuple(range(1, routing.depth, 2)):
            yield f"{self.name} routes every second layer from the second; set layers: alternate"
        if dense.config.get("hidden_act", "gelu") != "gelu":
            yield f"{self.name} has exact GELU, and this model {dense.config['hidden_act']}"

    def config(self, dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
        dense_config = dense.config
        rope: Mapping[str, Any] = dense_config.get("rope_parameters") or {}
        return {
            "model_type": "nomic_bert",
            "architectures": ["NomicBertModel"],
            "auto_map": {
                "AutoConfig": f"{_CODE}--configuration_hf_nomic_bert.NomicBertConfig",
                "AutoModel": f"{_CODE}--modeling_hf_nomic_bert.NomicBertModel",
            },
            "activation_function": "gelu",
            "attn_pdrop": dense_config.get("attention_probs_dropout_prob", 0.0),
            "embd_pdrop": dense_config.get("hidden_dropout_prob", 0.0),
            "resid_pdrop": dense_config.get("hidden_dropout_prob", 0.0),
            "expert_choice_router": False,
            "initializer_range": dense_config.get("initializer_range", 0.02),
            "layer_norm_epsilon": dense_config.get("layer_norm_eps", 1e-5),
            "max_trained_positions": dense_config.get("max_position_embeddings", 2048),
            "mlp_fc1_bias": True,
            "mlp_fc2_bias": True,
            "moe_every_n_layers": 2,
            # The exponent of the norm that gates are divided by.
            "moe_normalize_expert_weights": 1 if routing.normalize_gates else False,
            "moe_top_k": routing.top_k,
            "n_embd": dense.width,
            "n_head": dense_config["num_attention_heads"],
            "n_inner": dense_config["intermediate_size"],
            "n_layer": routing.depth,
            "n_positions": dense_config.get("max_position_embeddings", 2048),
            "num_experts": routing.experts,
            "num_shared_experts": 0,
            "pad_token_id": dense_config.get("pad_token_id", 1),
            "pad_vocab_size_multiple": _VOCABULARY,
            "prenorm": False,
            "qkv_proj_bias": True,
            "rotary_emb_base": rope.get("rope_theta", 10_000.0),
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "type_vocab_size": dense_config.get("type_vocab_size", 1),
            "use_rms_norm": False,
            "vocab_size": _pad_vocabulary(dense_config["vocab_size"]),
        }

    def block(self, dense: DenseModel, block: RoutedBlock) -> Iterator[TensorSpec]:
        path, count = block.path.removeprefix(dense.prefix), len(block.experts)
        first_weights = [expert["fc1.weight"] for expert in block.experts]
        second_weights = [expert["fc2.weight"] for expert in block.experts]
        inner_width, width = first_weights[0].shape
        shape, dtype = (count * inner_width, width), first_weights[0].dtype
        turned = tuple(
            Transposed(spec.name, (inner_width, width), spec.dtype, origin=spec)
            for spec in second_weights
        )
        biases = tuple(expert["fc2.bias"] for expert in block.experts)
        yield block.router.renamed(f"{path}router.layer.weight")
        yield Joined(f"{path}experts.mlp.w1", shape, dtype, parts=tuple(first_weights))
        yield Joined(f"{path}experts.mlp.w2", shape, dtype, parts=turned)
        weights = (1.0,) * count
        name = f"{path}experts.bias"
        yield Averaged(name, biases[0].shape, biases[0].dtype, parts=biases, weights=weights)

    def replace_tensor(self, dense: DenseModel, spec: TensorSpec) -> Iterator[TensorSpec]:
        name = spec.name.removeprefix(dense.prefix)
        if name.startswith(("pooler.", "lm_head.", "classifier.")):
            return
        for old, new in _ATTENTION:
            name = name.replace(old, new)
        rows = _pad_vocabulary(spec.shape[0])
        if name != "embeddings.word_embeddings.weight" or rows == spec.shape[0]:
            yield spec.renamed(name)
            return
        empty = FilledTensor("", (rows - spec.shape[0], *spec.shape[1:]), spec.dtype)
        yield Joined(name, (rows, *spec.shape[1:]), spec.dtype, parts=(spec, empty))


def _pad_vocabulary(rows: int) -> int:
    """Return the rows of a vocabulary, rounded up to a multiple of 64."""
    return -(-rows // _VOCABULARY) * _VOCABULARY


def measure_lost_bias(dense: DenseModel, layers: Sequence[int]) -> float:
    """Return the norm of the biases that the format has no place for, over all routed layers."""
    biases = [_read_tensor(dense.blocks[layer][1]["fc1.bias"]) for layer in layers]
    return math.sqrt(sum(float(bias.double().square().sum()) for bias in biases))


NOMIC_V2 = NomicV2(name="nomic_v2")


def _read_tensor(spec: TensorSpec) -> Tensor:
    """Return a whole tensor, float32."""
    import torch
    from emberge.tensor_files import TensorReader

    tensor = torch.empty(spec.elements)
    with TensorReader() as reader:
        reader.read(spec, 0, tensor)
    return tensor.view(spec.shape)
