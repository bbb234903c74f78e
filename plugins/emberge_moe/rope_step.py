"""The `rope` step: XLM-R with rotary positions, to be adapted to them by training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from emberge import (
    Artifact,
    CheckpointError,
    EmbergeError,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Step,
    TextLength,
    Workspace,
)
from emberge.files import write_text
from emberge.model_folder import Checkpoint, read_object
from emberge.tensor_files import TensorSpec
from emberge.wording import join_some
from emberge_encoder import Layout

from emberge_moe.dense_model import FUSED_NAME, ROTARY_TYPE
from emberge_moe.derived_tensors import JoinedTensor

_XLMR_TYPE = "xlm-roberta"
# Names of XLM-R and, as its own class stores them, of the rotary model.
_XLMR_TO_DISK = (
    (r"embeddings\.LayerNorm\.", "emb_ln."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"encoder.layers.\1.mixer.out_proj."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"encoder.layers.\1.norm1."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"encoder.layers.\1.mlp.fc1."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"encoder.layers.\1.mlp.fc2."),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"encoder.layers.\1.norm2."),
)
_UNCHANGED_TENSORS = re.compile(
    r"(embeddings\.(word|token_type)_embeddings|pooler\.dense|lm_head)\."
)
_ATTENTION = re.compile(r"encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.(weight|bias)")
_POSITIONS = re.compile(r"embeddings\.position_(embeddings\.weight|ids)")
# Keys of XLM-R's config that mean nothing to the rotary class.
_UNKNOWN_KEYS = frozenset(
    {
        *("model_type", "architectures", "auto_map", "_name_or_path", "transformers_version"),
        *("position_embedding_type", "is_decoder", "add_cross_attention", "output_past"),
    }
)
_CLASSES = {True: "JinaEmbeddingsV3ForMaskedLM", False: "JinaEmbeddingsV3Model"}
_ADAPT_WARNING = (
    "the result reads positions in a way that its weights have not learned, so its embeddings are worth "
    "little yet: train it with the loss mlm before any other use"
)


@dataclass(frozen=True, kw_only=True)
class Rope(Step):
    """Give XLM-R rotary positions in place of its table of 512, as `jina_embeddings_v3`, for longer texts.

    This is the first step towards Nomic Embed v2 (Nussbaum and Duderstadt, 2025, arXiv:2502.07972): the table
    of positions is removed, and every layer rotates its queries and keys by their positions (Su et al., 2021,
    arXiv:2104.09864). All other weights are those of XLM-R, including the masked-LM head if there is one.
    They have the names of a class of transformers, so plain `AutoModel` and SentenceTransformers load the
    result.

    The result does not compute the same as XLM-R, and must be adapted by masked language modelling before any
    other use; the check, the artifact and the card warn of that.

    Example:
        rotary:
          rope: {model: FacebookAI/xlm-roberta-base}
        adapted:
          train: {model: $rotary, data: ./texts.jsonl, loss: mlm, sampler: proportional}
    """

    produces = "model"

    model: ModelRef
    """XLM-R of any size, plain, with its masked-LM head, or in a SentenceTransformers folder."""
    rope_theta: Annotated[float, NumberRange(above=1)] = 10_000.0
    """Base of the rotations' wavelengths."""
    max_length: TextLength = 2048
    """Tokens of a text at most, for the tokenizer and in SentenceTransformers."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        if self.model.adapter or context.adapter(self.model):
            yield context.problem("it takes a whole model, not an adapter; merge it first", "model")
            return
        folder = context.whole_model(self.model)
        if folder is not None:
            try:
                checkpoint = Checkpoint(folder)
                build_rotary_config(checkpoint, self.rope_theta, self.max_length)
                if checkpoint.has_weights:
                    list_rotary_tensors(checkpoint)
            except EmbergeError as error:
                yield context.problem(str(error), "model")
                return
        yield context.warning(_ADAPT_WARNING, "model")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import build_result

        model = workspace.model(self.model)
        if model.adapter is not None:
            raise CheckpointError(f"{model.name}: is an adapter on a model; merge it first")
        checkpoint = Checkpoint(model.folder)
        config = build_rotary_config(checkpoint, self.rope_theta, self.max_length)
        tensors = list_rotary_tensors(checkpoint)
        build_result(
            workspace,
            tensors,
            template=checkpoint,
            key=[model.fingerprint, [tensor.name for tensor in tensors]],
            files={checkpoint.locate_in_trunk("config.json"): config},
            complete=self._write_max_length,
        )
        workspace.warn(_ADAPT_WARNING)
        details = {
            "rope_theta": self.rope_theta,
            "max_length": self.max_length,
            "to_be_adapted": _ADAPT_WARNING,
        }
        return model.describe_change(self.model, "giving rotary positions to", details)

    def _write_max_length(self, folder: Path) -> None:
        """Allow texts of the new length in the files of tokenizer and SentenceTransformers."""
        layout = Layout.read(folder)
        path = layout.trunk_folder / "tokenizer_config.json"
        if path.is_file():
            settings = {**read_object(path), "model_max_length": self.max_length}
            write_text(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        if not layout.bare:
            width = int(read_object(layout.trunk_folder / "config.json")["hidden_size"])
            replace(layout, max_length=self.max_length).write(folder, width)


def build_rotary_config(
    checkpoint: Checkpoint, rope_theta: float, max_length: int
) -> dict[str, Any]:
    """Return the config of the rotary model.

    Raises:
        CheckpointError: if the model is not an XLM-R.
    """
    config = checkpoint.config
    if config.get("model_type") != _XLMR_TYPE:
        raise CheckpointError(
            f"{checkpoint.folder}: is '{config.get('model_type')}'; rope takes XLM-R (xlm-roberta), whose "
            f"rotary class is {ROTARY_TYPE}"
        )
    kept_settings: Mapping[str, Any] = {k: v for k, v in config.items() if k not in _UNKNOWN_KEYS}
    masked = not checkpoint.has_weights or any(
        name.startswith("lm_head.") for name in checkpoint.tensor_names.heads
    )
    return {
        "layer_norm_eps": 1e-12,  # XLM-R's, where its config does not name one
        **kept_settings,
        "model_type": ROTARY_TYPE,
        "architectures": [_CLASSES[masked]],
        "max_position_embeddings": max_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
    }


def list_rotary_tensors(checkpoint: Checkpoint) -> list[TensorSpec]:
    """Return the rotary model's tensors: XLM-R's, renamed, with query, key and value joined in one.

    Raises:
        CheckpointError: if the rotary model lacks a tensor, such as another task's head.
    """
    names = checkpoint.tensor_names
    inner_prefix = names.prefix.removeprefix(names.wrapper)
    modules = tuple(filter(None, checkpoint.folder_by_prefix))
    rotary: list[TensorSpec] = []
    unknown_names: list[str] = []
    for name, spec in names.specs.items():
        prefix = inner_prefix if spec.name.startswith(names.prefix) else ""
        if modules and name.startswith(modules):
            rotary.append(spec)
        elif _POSITIONS.fullmatch(name) or names.is_redundant(name):
            continue
        elif match := _ATTENTION.fullmatch(name):
            if match[2] == "query":
                fused_name = f"{prefix}encoder.layers.{match[1]}{FUSED_NAME}{match[3]}"
                parts = tuple(
                    names.specs[name.replace("query", p)] for p in ("query", "key", "value")
                )
                shape = (3 * spec.shape[0], *spec.shape[1:])
                rotary.append(JoinedTensor(fused_name, shape, spec.dtype, parts=parts))
        elif rotary_name := _find_rotary_name(name):
            rotary.append(spec.with_name(prefix + rotary_name))
        else:
            unknown_names.append(name)
    if unknown_names:
        raise CheckpointError(
            f"{checkpoint.folder}: {join_some(unknown_names)}: {ROTARY_TYPE} has no place for it; take the "
            "plain model or the one with its masked-LM head"
        )
    return rotary


def _find_rotary_name(name: str) -> str:
    """Return the rotary class's name of an unchanged tensor; "" if the class lacks the tensor."""
    for old, new in _XLMR_TO_DISK:
        if re.match(old, name):
            return re.sub(old, new, name)
    return name if _UNCHANGED_TENSORS.match(name) else ""
