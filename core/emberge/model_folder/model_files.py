"""Which files of a model folder come along into a result, and why the others do not."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path

from emberge.model_folder.checkpoint import Checkpoint

__all__ = ["TOKENIZER_FILES", "carried_files", "files_not_copied", "tokenizer_folder"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)

_SUFFIXES = (
    *(".json", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".bpe", ".codes", ".vocab", ".py"),
    ".metadata",  # ColBERT's lengths and marker tokens
)
_NAMES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")
_FOLDERS = ("additional_chat_templates",)

# Why a file or folder stays behind; the first pattern that fits tells.
_CARD = "a card of its own is written"
_STATE = "a training's state"
_RESULTS = "a training's record"
_WEIGHTS = "weights in another format"
_ADAPTER = "an adapter beside the weights"
_PLACE = "of the repository, not of the model"
_REASONS = (
    (_PLACE, (".*",)),
    (_CARD, ("README*", "artifact.json", "model_card*")),
    (_STATE, ("optimizer*", "scheduler*", "rng_state*", "scaler*", "training_args.*")),
    (_STATE, ("checkpoint-*/", "checkpoints/", "global_step*/", "zero_to_fp32.py", "latest")),
    (_STATE, ("trainer_state.json",)),
    (_RESULTS, ("all_results.json", "train_results.json", "eval_results.json", "metrics.jsonl")),
    (_RESULTS, ("eval/", "runs/", "logs/", "wandb/", "events.out.*", "*_results.csv")),
    (_ADAPTER, ("adapter_*",)),
    (_WEIGHTS, ("quantize_config.json", "*.index.json", "*.safetensors", "*.bin", "*.pt", "*.pth")),
    (
        _WEIGHTS,
        ("*.ckpt", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.gguf", "*.mlmodel"),
    ),
    (_WEIGHTS, ("onnx/", "openvino*", "coreml/", "gguf/", "saved_model/", "original/")),
)
_OTHER = "no file of a model"


def tokenizer_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder of a model's tokenizer files: the transformer's, or the whole model's."""
    has = any((checkpoint.trunk / name).is_file() for name in TOKENIZER_FILES)
    return checkpoint.trunk if has else checkpoint.folder


def carried_files(checkpoint: Checkpoint) -> Iterator[Path]:
    """Configs, tokenizer, code, licences and metadata of the folder and its modules' folders."""
    folders = [*_folders(checkpoint), *(checkpoint.folder / name for name in _FOLDERS)]
    for folder in dict.fromkeys(f for f in folders if f.is_dir()):
        for path in sorted(folder.iterdir()):
            if path.is_file() and _why_not(path) is None:
                yield path


def files_not_copied(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """What stays behind by reason, as paths in the folder; a subfolder ends with a slash.

    The weights that the result gets merged are not named.
    """
    found: dict[str, list[str]] = {}
    weights = {s.file for s in checkpoint.specs.values()} if checkpoint.has_weights else set()
    inside = set(_folders(checkpoint)) | {checkpoint.folder / name for name in _FOLDERS}
    above = {parent for folder in inside for parent in folder.parents}
    for folder in dict.fromkeys(f for f in _folders(checkpoint) if f.is_dir()):
        for path in sorted(folder.iterdir()):
            index = path.name == "model.safetensors.index.json"
            if path in inside | above or path in weights or index:
                continue
            reason = _why_not(path)
            if reason is not None:
                name = path.relative_to(checkpoint.folder).as_posix()
                found.setdefault(reason, []).append(name + "/" * path.is_dir())
    return found


def _folders(checkpoint: Checkpoint) -> list[Path]:
    modules = [checkpoint.folder / module.path for module in checkpoint.chain]
    return [checkpoint.folder, checkpoint.trunk, *modules]


def _why_not(path: Path) -> str | None:
    name = path.name + "/" * path.is_dir()
    for reason, patterns in _REASONS:
        if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(path.name, p) for p in patterns):
            return reason
    kept = path.suffix in _SUFFIXES or any(fnmatch.fnmatch(name, p) for p in _NAMES)
    return None if kept and not path.is_dir() else _OTHER
