"""Folders of models, read without their weights: what `text_encoder` accepts, and kinds of models.

Since release 6 of sentence-transformers, sentence_bert_config.json lists the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError, MediaKind
from emberge.architectures import has_config_class
from emberge.model_folder import (
    Checkpoint,
    read_object,
    read_settings,
    read_trunk_settings,
)
from emberge.wording import join_some

from emberge_encoder.layout import Layout, require_stock_modules

_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
# Options of a chat template that are the tokenizer's.
_SIZES = ("padding", "truncation", "max_length", "return_tensors")
# Stock modules that may come after the mean of tokens' vectors.
_AFTER_STATIC = ("Normalize", "Dense", "LayerNorm", "Dropout")
# Names of the table of vectors: that of sentence-transformers, and that of model2vec.
_STATIC_TABLES = ("embedding.weight", "embeddings")
_CLASSIFIER = "ForSequenceClassification"
# A class of transformers has so many outputs unless its config names them.
_DEFAULT_OUTPUTS = 2
# Kinds of media by the model types of transformers' native classes.
FAMILIES: Mapping[str, tuple[MediaKind, ...]] = {
    "qwen3_vl": ("image",),
    "qwen3_asr": ("audio",),
    "qwen3_omni_moe_thinker": ("image", "audio"),
}
_PROCESSORS: Mapping[MediaKind, str] = {"image": "image_processor", "audio": "feature_extractor"}


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
    if not has_config_class(kind):
        named = join_some([str(name) for name in config.get("architectures") or ["…"]])
        subject = f"model type '{kind}'" if kind else f"class {named}, and no model type is given"
        code_note = (
            "its code lies beside the weights and is not run" if "auto_map" in config else ""
        )
        raise CheckpointError(
            f"{path}: transformers has no {subject}, and no plugin adds it"
            + (code_note and f"; {code_note}")
        )


def read_message_settings(layout: Layout) -> Mapping[str, Any] | None:
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


def is_static_model(folder: Path) -> bool:
    """Return whether a folder is a static model: its first module is a StaticEmbedding.

    Raises:
        CheckpointError: if modules.json cannot be read.
    """
    modules = Checkpoint(folder).modules
    return bool(modules) and modules[0].kind == "StaticEmbedding"


def read_static_dimension(folder: Path) -> int | None:
    """Return the size of embeddings of a static model from its files; None if none has it.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    checkpoint = Checkpoint(folder)
    first, *after = checkpoint.modules
    for module in reversed(after):
        if module.kind == "Dense":
            size = read_object(folder / module.path / "config.json").get("out_features")
            return size if type(size) is int else None
    specs = checkpoint.specs if checkpoint.has_weights else {}
    prefix = "" if checkpoint.folder_by_prefix[""] == first.path else f"{first.path}."
    tables = [spec for n, spec in specs.items() if n.removeprefix(prefix) in _STATIC_TABLES]
    return int(tables[0].shape[1]) if tables and len(tables[0].shape) == 2 else None


def refuse_broken_static(checkpoint: Path) -> None:
    """Refuse a static model with a module that needs tokens after the mean of its vectors.

    Raises:
        CheckpointError: if there is one.
    """
    require_stock_modules(checkpoint)
    for module in Checkpoint(checkpoint).modules[1:]:
        if module.kind not in _AFTER_STATIC:
            raise CheckpointError(
                f"{checkpoint}: module '{module.kind}' comes after a StaticEmbedding, which has an embedding "
                f"of each text already; only {join_some(_AFTER_STATIC)} may"
            )


@dataclass(frozen=True, slots=True)
class CrossEncoderFacts:
    """Facts of a folder that may be a cross-encoder; `outputs` is the number of its scores or classes.

    It `is_one` if sentence-transformers' CrossEncoder saved it, or if it is a bare folder of a
    sequence-classification class of transformers.
    """

    folder: Path
    is_one: bool
    outputs: int

    @classmethod
    def read(cls, folder: Path) -> CrossEncoderFacts:
        """Return the facts of a model folder, from its configs alone.

        Raises:
            CheckpointError: if a file cannot be read.
        """
        path = folder / "config.json"
        config = read_object(path) if path.is_file() else {}
        names, labels = config.get("architectures"), config.get("id2label")
        first = str(next(iter(names), "")) if isinstance(names, list) else ""
        classifies = first.endswith(_CLASSIFIER)
        is_saved = read_settings(folder).get("model_type") == "CrossEncoder"
        outputs = len(labels) if isinstance(labels, dict) and labels else _DEFAULT_OUTPUTS
        is_one = is_saved if Checkpoint(folder).modules else classifies
        return cls(folder, is_one, outputs if classifies else 1)

    @property
    def noun(self) -> str:
        """Phrase for its kind: a reranker or a classifier."""
        if self.outputs != 1:
            return f"a classifier with {self.outputs} outputs, which embeds no text"
        return "a reranker (cross-encoder), which scores pairs of texts and embeds none"

    @property
    def remedy(self) -> str:
        """Advice for whoever wants an embedder."""
        encoder = "take the encoder that it came from"
        if self.outputs != 1:
            return encoder
        return (
            f"{encoder}; evaluate and train take rerankers with backbone: cross_encoder, and score_pairs as "
            "its teacher"
        )

    @property
    def problems(self) -> list[str]:
        """Reasons why it cannot score pairs."""
        if self.outputs == 1:
            return []
        return [
            f"{self.folder / 'config.json'}: the model has {self.outputs} outputs, which are classes; a "
            "cross-encoder that scores pairs has one (id2label), so choose such a model, or the encoder that "
            "it came from"
        ]


@dataclass(frozen=True)
class MediaSupport:
    """Kinds of media that a model reads, with its family, config, and the settings of their processors."""

    family: str
    kinds: tuple[MediaKind, ...]
    folder: Path
    config: Mapping[str, Any]
    processors: Mapping[MediaKind, Mapping[str, Any]]

    def find_token_id(self, kind: MediaKind) -> int:
        """Return the id of the placeholder token of a kind of media."""
        return int(self.config[f"{kind}_token_id"])


def read_media_support(layout: Layout, config: Mapping[str, Any]) -> MediaSupport | None:
    """Return the media that the model of a folder reads; None if it reads text alone.

    Raises:
        CheckpointError: if the folder lists media, but lacks a token or settings for them.
    """
    family = str(config.get("model_type"))
    settings = {} if layout.bare else read_trunk_settings(layout.trunk_folder)
    modality_config = settings.get("modality_config") or {}
    kinds = tuple(kind for kind in FAMILIES.get(family, ()) if kind in modality_config)
    if not kinds or "message" not in modality_config:
        return None
    folder = layout.trunk_folder
    for kind in kinds:
        if config.get(f"{kind}_token_id") is None:
            raise CheckpointError(f"{folder}/config.json: has no {kind}_token_id; add it")
    if "image" in kinds and config.get("vision_start_token_id") is None:
        raise CheckpointError(
            f"{folder}/config.json: has no vision_start_token_id, by which positions of images are found; "
            "add it at the top"
        )
    return MediaSupport(
        family,
        kinds,
        folder,
        config,
        {kind: _read_processor_settings(folder, kind) for kind in kinds},
    )


def _read_processor_settings(folder: Path, kind: MediaKind) -> Mapping[str, Any]:
    """Return the settings of the processor of a kind, in either of the files that transformers writes."""
    processor_file, preprocessor_file = (
        folder / "processor_config.json",
        folder / "preprocessor_config.json",
    )
    settings = (
        read_object(processor_file).get(_PROCESSORS[kind]) if processor_file.is_file() else None
    )
    if not settings and preprocessor_file.is_file():
        settings = read_object(preprocessor_file)
    if not settings:
        raise CheckpointError(
            f"{folder}: lists {kind} in modality_config, and has no {_PROCESSORS[kind]} in "
            "processor_config.json; copy it from the model that it came from"
        )
    return dict(settings)
