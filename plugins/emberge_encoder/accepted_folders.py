"""Folders that `text_encoder` accepts: by the class of the model, and by the inputs that it takes.

Since release 6 of sentence-transformers, sentence_bert_config.json lists the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.architectures import find_config_class
from emberge.model_folder import Checkpoint, read_modules, read_object, read_trunk_settings
from emberge.wording import join_some

from emberge_encoder.layout import Layout, require_stock_modules

_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
# Options of a chat template that are the tokenizer's.
_SIZES = ("padding", "truncation", "max_length", "return_tensors")
# Stock modules that may come after the mean of tokens' vectors.
_AFTER_STATIC = ("Normalize", "Dense", "LayerNorm", "Dropout")


def refuse_foreign_classes(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a config whose model class neither transformers nor a plugin defines.

    Nomic's mixture of experts has the model type of a dense class of transformers. That class would ignore
    all experts and use random weights instead.

    Raises:
        CheckpointError: if neither defines it; the message names the class.
    """
    if config.get("model_type") == "nomic_bert" and config.get("num_experts"):
        raise CheckpointError(
            f"{path}: is Nomic's mixture of {config['num_experts']} experts, which needs code of Nomic's "
            "that is not run; transformers' nomic_bert is another, dense model. Upcycle the dense model "
            "without 'export' for one that loads"
        )
    kind = config.get("model_type")
    if find_config_class(kind) is None:
        named = join_some([str(name) for name in config.get("architectures") or ["…"]])
        subject = f"model type '{kind}'" if kind else f"class {named}, and no model type is given"
        code_note = (
            "its code lies beside the weights and is not run" if "auto_map" in config else ""
        )
        raise CheckpointError(
            f"{path}: transformers has no {subject}, and no plugin adds it"
            + (code_note and f"; {code_note}")
        )


def message_of(layout: Layout) -> Mapping[str, Any] | None:
    """Return the chat message settings of a folder whose texts are messages; None for other folders."""
    settings = {} if layout.bare else read_trunk_settings(layout.trunk_folder)
    return (settings.get("modality_config") or {}).get("message")


def refuse_modalities(layout: Layout, kinds: Sequence[str] = ()) -> None:
    """Refuse a folder whose inputs do not reach the transformer as messages or texts.

    `kinds` are the media that the model reads; processors of other media are refused.

    Raises:
        CheckpointError: if they do not; the message has the key of sentence_bert_config.json.
    """
    path = f"{layout.trunk_folder}: sentence_bert_config.json"
    settings = read_trunk_settings(layout.trunk_folder)
    modalities = settings.get("modality_config") or {"text": _FORWARD}
    other_modalities = sorted(set(modalities) - {"text", "message"})
    if "message" in modalities and other_modalities and not kinds:
        raise CheckpointError(
            f"{path} has every text formatted by the chat template of a processor of "
            f"{other_modalities[0]}, and text_encoder has a tokenizer alone; to train it on plain text, take "
            "'message' out of modality_config, which changes its embeddings"
        )
    output = settings.get("module_output_name") or "token_embeddings"
    for kind in ("message" if "message" in modalities else "text", *kinds):
        entry = modalities.get(kind)
        method = {k: v for k, v in entry.items() if k != "format"} if entry else entry
        if method != _FORWARD or output != "token_embeddings":
            raise CheckpointError(
                f"{path} sends a {kind} through {entry} to {output}, and text_encoder takes a transformer's "
                "last hidden state; use a model of text alone"
            )
    processing = settings.get("processing_kwargs") or {}
    options = [*(processing.get("text") or {}), *(processing.get("common") or {})]
    options += [name for name in processing.get("chat_template") or {} if name in _SIZES]
    if options:
        raise CheckpointError(
            f"{path} gives the tokenizer '{options[0]}' (processing_kwargs), which text_encoder does not; "
            "take it out, which may change the model's embeddings"
        )


# Stock modules that may come after the mean of tokens' vectors.
_AFTER_STATIC = ("Normalize", "Dense", "LayerNorm", "Dropout")
_LARGEST = 1 << 20  # of a vector, or of a vocabulary
# Names of the table of vectors: that of sentence-transformers, and that of model2vec.
_STATIC_TABLES = ("embedding.weight", "embeddings")


def is_static_model(folder: Path) -> bool:
    """Return whether a folder is a static model: its first module is a StaticEmbedding.

    Raises:
        CheckpointError: if modules.json cannot be read.
    """
    modules = read_modules(folder)
    return bool(modules) and modules[0].kind == "StaticEmbedding"


def read_static_dimension(folder: Path) -> int | None:
    """Return the size of embeddings of a static model from its files; None if none has it.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    first, *after = read_modules(folder)
    for module in reversed(after):
        if module.kind == "Dense":
            size = read_object(folder / module.path / "config.json").get("out_features")
            return size if type(size) is int else None
    checkpoint = Checkpoint(folder)
    specs = checkpoint.specs if checkpoint.has_weights else {}
    prefix = "" if checkpoint.parts[""] == first.path else f"{first.path}."
    tables = [spec for n, spec in specs.items() if n.removeprefix(prefix) in _STATIC_TABLES]
    return int(tables[0].shape[1]) if tables and len(tables[0].shape) == 2 else None


def refuse_broken_static(checkpoint: Path) -> None:
    """Refuse a static model with a module that needs tokens after the mean of its vectors.

    Raises:
        CheckpointError: if there is one.
    """
    require_stock_modules(checkpoint)
    for module in read_modules(checkpoint)[1:]:
        if module.kind not in _AFTER_STATIC:
            raise CheckpointError(
                f"{checkpoint}: module '{module.kind}' comes after a StaticEmbedding, which has an embedding "
                f"of each text already; only {join_some(_AFTER_STATIC)} may"
            )
