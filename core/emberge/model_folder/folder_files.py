"""Files of model folders: the table of known names, checks of links and sizes, and reading of JSON.

In a folder from outside, a model's file may be a link to a private file, which a result would then publish. A
link may lead inside the model's own folder, or from a snapshot of the hub's cache into that cache's blobs.
The folder itself may be a link, as the user who named it wants its target.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge.errors import CheckpointError
from emberge.files import JSON_LIMIT, read_json, read_regular, require_inside, require_regular

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "sentencepiece.bpe.model"),
    *("spiece.model", "chat_template.jinja", "chat_template.json"),
)
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_SIGNS = ("modules.json", "config.json", ADAPTER_CONFIG)
"""Names of files of which every model has at least one."""
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Form of a model's id on a hub, `owner/name`."""
HUB_NAME = re.compile(rf"{HUB_ID.pattern}|\w[\w.-]*")
"""Form of a model's id on a hub, or of the name of an old model, which has no owner."""
_CACHED_MODEL = re.compile(r"models--(.+?)--(.+)$")
EXTRA_FOLDERS = ("additional_chat_templates",)
"""Folders with files of a model, in addition to the trunk's and the modules' folders."""


@dataclass(frozen=True, slots=True)
class FileRule:
    """A row of the table of known files: patterns of names, and what is done with such files.

    Patterns of folders end with a slash. Weights that are hashed only in a folder without safetensors are
    `hashed` "alone". `reason` says why the files are copied or not.
    """

    patterns: tuple[str, ...]
    copied: bool
    hashed: Literal["yes", "no", "alone"]
    reason: str


REPOSITORY_REASON = "of the repository, not of the model"
CARD_REASON = "a card of its own is written"
STATE_REASON = "a training's state"
RECORD_REASON = "a training's record"
_ADAPTER_REASON = "an adapter beside the weights"
WEIGHTS_REASON = "the weights"
OTHER_FORMAT_REASON = "weights in another format"
HEAD_REASON = "a head beside the weights, which nothing opens"
LICENCE_REASON = "terms that bind whoever has a copy"
_MODEL_REASON = "what the model is made of beside its weights"
_CODE_REASON = "code, which a result never has"

FILE_RULES = (
    FileRule((".*",), False, "no", REPOSITORY_REASON),
    FileRule(("README*", "artifact.json", "model_card*"), False, "no", CARD_REASON),
    FileRule(("optimizer*", "scheduler*", "rng_state*", "scaler*"), False, "no", STATE_REASON),
    FileRule(("training_args.*", "zero_to_fp32.py", "latest"), False, "no", STATE_REASON),
    FileRule(("checkpoint-*/", "checkpoints/", "global_step*/"), False, "no", STATE_REASON),
    FileRule(("trainer_state.json",), False, "no", STATE_REASON),
    FileRule(("all_results.json", "train_results.json"), False, "no", RECORD_REASON),
    FileRule(("eval_results.json",), False, "no", RECORD_REASON),
    FileRule(("metrics.jsonl", "events.out.*", "*_results.csv"), False, "no", RECORD_REASON),
    FileRule(("eval/", "runs/", "logs/", "wandb/"), False, "no", RECORD_REASON),
    FileRule(("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*"), True, "no", LICENCE_REASON),
    FileRule(("USE_POLICY*",), True, "no", LICENCE_REASON),
    FileRule(("adapter_*.bin",), False, "alone", _ADAPTER_REASON),
    FileRule(("adapter_*",), False, "yes", _ADAPTER_REASON),
    FileRule(("*.safetensors", "*.safetensors.index.json"), False, "yes", WEIGHTS_REASON),
    FileRule(("*.safetensors.remote",), False, "yes", WEIGHTS_REASON),
    FileRule(("pytorch_model*", "model*.bin", "model*.pt*"), False, "alone", OTHER_FORMAT_REASON),
    FileRule(("consolidated*", "*.index.json"), False, "alone", OTHER_FORMAT_REASON),
    FileRule(("*.bin", "*.pt", "*.pth"), True, "alone", HEAD_REASON),
    FileRule(("quantize_config.json",), False, "yes", OTHER_FORMAT_REASON),
    FileRule(("*.ckpt", "*.h5", "*.msgpack", "*.ot"), False, "no", OTHER_FORMAT_REASON),
    FileRule(("*.onnx", "*.onnx_data", "*.gguf", "*.mlmodel"), False, "no", OTHER_FORMAT_REASON),
    FileRule(("onnx/", "openvino*", "coreml/", "gguf/"), False, "no", OTHER_FORMAT_REASON),
    FileRule(("saved_model/", "original/"), False, "no", OTHER_FORMAT_REASON),
    FileRule(("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"), True, "yes", _MODEL_REASON),
    FileRule(("*.spm", "*.bpe", "*.codes", "*.vocab"), True, "yes", _MODEL_REASON),
    FileRule(("*.py",), False, "yes", _CODE_REASON),
    FileRule(("*.metadata",), True, "yes", _MODEL_REASON),  # ColBERT's lengths and marker tokens
)
"""Table of files; for each name the first matching row applies."""


def find_model_name(folder: Path) -> str:
    """Return the usual name of a model: its hub id if it is in the hub's cache, else its folder's name."""
    real = folder.resolve()
    snapshot = _CACHED_MODEL.match(real.parent.parent.name)
    is_cached = snapshot is not None and real.parent.name == "snapshots"
    return f"{snapshot[1]}/{snapshot[2]}" if snapshot is not None and is_cached else folder.name


@functools.cache
def find_rule(name: str, *, is_folder: bool = False) -> FileRule | None:
    """Return the table's row for the name of a file or folder; None if it does not belong to a model."""
    names = (name, f"{name}/") if is_folder else (name,)
    for rule in FILE_RULES:
        if any(fnmatch.fnmatch(name, pattern) for name in names for pattern in rule.patterns):
            return rule
    return None


def require_sound(inner: Path, folder: Path) -> None:
    """Require that the model files in `inner`, which is `folder` or a folder in it, may be read and copied.

    Files that do not belong to a model are not checked.

    Raises:
        UnsoundFileError: if a path with the name of a model's file is a link out of the model's folder, a
            FIFO, a device or a JSON file that is too large.
        CheckpointError: if the folder may not be read.
    """
    roots = _list_allowed_roots(folder)
    require_inside(inner, *roots)
    try:
        with os.scandir(inner) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise CheckpointError(f"{inner}: cannot be read ({error.strerror})") from None
    for entry in entries:
        rule = find_rule(entry.name)
        if rule is None or not (rule.copied or rule.hashed != "no"):
            continue
        if entry.is_symlink():
            require_inside(Path(entry.path), *roots)
        with suppress(OSError):  # a link to nothing or to itself is no file
            if not entry.is_dir():
                limit = JSON_LIMIT if entry.name.endswith(".json") else None
                require_regular(Path(entry.path), entry.stat(), limit=limit)


def resolve_file(path: Path, folder: Path) -> Path:
    """Return the real path of a file of the model in `folder`; a link out of the folder is refused."""
    return require_inside(path, *_list_allowed_roots(folder))


def _list_allowed_roots(folder: Path) -> list[Path]:
    """Return the folders into which links may lead: the model's, and the blobs of its hub cache.

    A snapshot in that cache is `models--x--y/snapshots/REVISION`.
    """
    roots = [folder.resolve()]
    for parent in roots[0].parents:
        blobs = parent.parent / "blobs"
        is_cached = parent.name == "snapshots" and parent.parent.name.startswith("models--")
        if is_cached and blobs.is_dir() and not blobs.is_symlink():
            roots.append(blobs)
    return roots


def read_model_json(path: Path) -> Any:
    """Return a JSON file's content."""
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from None


def read_text(path: Path) -> str:
    """Return the text of a file of a model folder.

    Raises:
        CheckpointError: if it is not UTF-8, or longer than any model's text file.
    """
    try:
        return read_regular(path, limit=JSON_LIMIT).decode("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as text ({error})") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: if it is not a JSON object.
    """
    content = read_model_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must be a JSON object, not a {type(content).__name__}")
    return content


def read_object_if_any(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file or it has no object."""
    content = read_model_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
