"""GGUF files for llama.cpp, Ollama and LM Studio, and embedding with them by llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from emberge import CheckpointError
from emberge_encoder import Layout
from numpy.typing import NDArray

from emberge_export.formats import Precision
from emberge_export.gguf_tokenizer import TokenizerWriter

_TYPE_BY_PRECISION = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
_FILE_TYPE_BY_PRECISION = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
# Numbers of a row that share a scale in q8_0.
_GROUP = 32
_POOLING_BY_MODE = {
    "mean": gguf.PoolingType.MEAN,
    "cls": gguf.PoolingType.CLS,
    "last": gguf.PoolingType.LAST,
}
# Matrices that llama.cpp reads in float32 alone.
_SMALL = ("position_embd", "token_types")


@dataclass(frozen=True)
class Family:
    """The architecture and the keys of llama.cpp for the models of one `model_type`."""

    architecture: gguf.MODEL_ARCH
    write_facts: Callable[[gguf.GGUFWriter, Any], None]
    first_position: Callable[[Any], int] = lambda _: 0
    """The rows of the position table before that of a text's first token."""
    norm_shift: float = 0.0
    """The number that the class adds to the stored weights of its norms."""


def _write_bert(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_causal_attention(False)


def _write_modern_bert(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_causal_attention(False)
    writer.add_vocab_size(config.vocab_size)
    writer.add_sliding_window(config.local_attention)
    writer.add_sliding_window_pattern([kind != "full_attention" for kind in config.layer_types])
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _write_decoder(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_causal_attention(getattr(config, "is_causal", True))


def _write_qwen3(writer: gguf.GGUFWriter, config: Any) -> None:
    _write_decoder(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _write_gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    _write_decoder(writer, config)
    # The class sees tokens nearer than this on either side; llama.cpp takes the width of both sides.
    writer.add_sliding_window(2 * (config.sliding_window - 1))
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


_FAMILY_BY_MODEL_TYPE = {
    "bert": Family(gguf.MODEL_ARCH.BERT, _write_bert),
    "xlm-roberta": Family(
        gguf.MODEL_ARCH.BERT, _write_bert, lambda config: config.pad_token_id + 1
    ),
    "modernbert": Family(gguf.MODEL_ARCH.MODERN_BERT, _write_modern_bert),
    "qwen3": Family(gguf.MODEL_ARCH.QWEN3, _write_qwen3),
    "gemma3_text": Family(gguf.MODEL_ARCH.GEMMA_EMBEDDING, _write_gemma3, norm_shift=1.0),
}


def write_gguf(
    trunk: Any, tokenizer: Any, layout: Layout, precision: Precision, path: Path
) -> None:
    """Write a transformer, its tokenizer and the pooling of its layout as one file.

    Raises:
        CheckpointError: if llama.cpp cannot run the model; the message names what it lacks.
    """
    config = trunk.config
    family = _FAMILY_BY_MODEL_TYPE.get(config.model_type)
    if family is None:
        known = ", ".join(_FAMILY_BY_MODEL_TYPE)
        raise CheckpointError(
            f"no GGUF for the model type '{config.model_type}'; known are {known}"
        )
    pooling = " + ".join(layout.pooling) or "mean"
    if pooling not in _POOLING_BY_MODE:
        known = ", ".join(_POOLING_BY_MODE)
        raise CheckpointError(f"llama.cpp has no pooling '{pooling}'; it has {known}")
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family.architecture])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(_FILE_TYPE_BY_PRECISION[precision])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings - family.first_position(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_pooling_type(_POOLING_BY_MODE[pooling])
    family.write_facts(writer, config)
    TokenizerWriter(writer, tokenizer, config.vocab_size, layout.lower_case).write()
    _add_tensors(writer, trunk, family, precision)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: gguf.GGUFWriter, trunk: Any, family: Family, precision: Precision) -> None:
    """Add each tensor under llama.cpp's name, except those of a pooler, which embeddings do not use."""
    names = gguf.get_tensor_name_map(family.architecture, trunk.config.num_hidden_layers)
    endings = (".weight", ".bias")
    for name, tensor in trunk.state_dict().items():
        if name.startswith("pooler."):
            continue
        target = names.get_name(name, endings) or names.get_name(f"model.{name}", endings)
        if target is None:
            raise CheckpointError(
                f"llama.cpp has no tensor for '{name}' of the type {trunk.config.model_type}"
            )
        values = tensor.float().numpy()
        if target.startswith("position_embd"):
            values = values[family.first_position(trunk.config) :]
        if name.endswith("norm.weight"):
            values = values + np.float32(family.norm_shift)
        kind = _choose_type(values, target, precision)
        writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _choose_type(
    values: NDArray[Any], name: str, precision: Precision
) -> gguf.GGMLQuantizationType:
    """Return the stored type of a tensor: float32 for vectors and small tables."""
    if values.ndim < 2 or name.startswith(_SMALL):
        return gguf.GGMLQuantizationType.F32
    if precision == "q8_0" and values.shape[-1] % _GROUP:
        return gguf.GGMLQuantizationType.F16
    return _TYPE_BY_PRECISION[precision]


def embed_by_llama_cpp(path: Path, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the embeddings [n, d] of texts, of length 1, as llama.cpp computes them on the CPU.

    Raises:
        CheckpointError: if llama.cpp cannot load the file, or refuses a text.
    """
    import torch
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.embedding, params.verbosity = True, -1
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = torch.get_num_threads()
    try:
        rows = xllamacpp.Server(params).handle_embeddings({"input": list(texts)})["data"]
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"{path}: llama.cpp cannot embed with it: {error}") from error
    return np.array([row["embedding"] for row in rows], np.float64)
