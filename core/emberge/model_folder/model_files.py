"""One table of the files in a model folder: which are copied into a result, and which decide embeddings."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emberge.errors import CheckpointError
from emberge.files.hashes import HashCache, files_fingerprint, stable_hash
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.st_layout import read_chain
from emberge.tensor_files.remote_file import RemoteFile, is_remote

__all__ = [
    "FILES",
    "TOKENIZER_FILES",
    "FileRule",
    "copied_files",
    "files_not_copied",
    "hashed_files",
    "model_fingerprint",
    "published_files",
    "tokenizer_folder",
]

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
# Folders with files of a model, beside the trunk's and the modules'.
_FOLDERS = ("additional_chat_templates",)


@dataclass(frozen=True, slots=True)
class FileRule:
    """A row of the table: names of files, or of folders with a slash behind, and what becomes of them.

    `hashed` is "alone" for weights that count only in a folder without safetensors. `why` is the reason not
    to copy them, or to copy them.
    """

    patterns: tuple[str, ...]
    copied: bool
    hashed: Literal["yes", "no", "alone"]
    why: str


_PLACE = "of the repository, not of the model"
_PASSPORT = "the passport of another model's space"
_CARD = "a card of its own is written"
_STATE = "a training's state"
_RECORD = "a training's record"
_ADAPTER = "an adapter beside the weights"
_WEIGHTS = "the weights"
_OTHER_WEIGHTS = "weights in another format"
_LICENCE = "terms that bind whoever has a copy"
_MODEL = "what the model is made of beside its weights"
_NO_MODEL = "no file of a model"

FILES = (
    FileRule((".*",), False, "no", _PLACE),
    FileRule(("README*", "artifact.json", "model_card*"), False, "no", _CARD),
    FileRule(("space.json",), False, "no", _PASSPORT),
    FileRule(("optimizer*", "scheduler*", "rng_state*", "scaler*"), False, "no", _STATE),
    FileRule(("training_args.*", "zero_to_fp32.py", "latest"), False, "no", _STATE),
    FileRule(("checkpoint-*/", "checkpoints/", "global_step*/"), False, "no", _STATE),
    FileRule(("trainer_state.json",), False, "no", _STATE),
    FileRule(("all_results.json", "train_results.json", "eval_results.json"), False, "no", _RECORD),
    FileRule(("metrics.jsonl", "events.out.*", "*_results.csv"), False, "no", _RECORD),
    FileRule(("eval/", "runs/", "logs/", "wandb/", "bags/"), False, "no", _RECORD),
    FileRule(("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*"), True, "no", _LICENCE),
    FileRule(("adapter_*.bin",), False, "alone", _ADAPTER),
    FileRule(("adapter_*",), False, "yes", _ADAPTER),
    FileRule(("*.safetensors", "*.safetensors.index.json"), False, "yes", _WEIGHTS),
    FileRule(("*.safetensors.remote",), False, "yes", _WEIGHTS),
    FileRule(("*.bin", "*.pt", "*.pth", "*.index.json"), False, "alone", _OTHER_WEIGHTS),
    FileRule(("quantize_config.json",), False, "yes", _OTHER_WEIGHTS),
    FileRule(("*.ckpt", "*.h5", "*.msgpack", "*.ot"), False, "no", _OTHER_WEIGHTS),
    FileRule(("*.onnx", "*.onnx_data", "*.gguf", "*.mlmodel"), False, "no", _OTHER_WEIGHTS),
    FileRule(
        ("onnx/", "openvino*", "coreml/", "gguf/", "saved_model/", "original/"),
        False,
        "no",
        _OTHER_WEIGHTS,
    ),
    FileRule(("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"), True, "yes", _MODEL),
    FileRule(("*.spm", "*.bpe", "*.codes", "*.vocab", "*.py"), True, "yes", _MODEL),
    FileRule(("*.metadata",), True, "yes", _MODEL),  # ColBERT's lengths and marker tokens
)
"""The table; the first row that fits decides."""


def tokenizer_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder of a model's tokenizer files: the transformer's, or the whole model's."""
    has = any((checkpoint.trunk / name).is_file() for name in TOKENIZER_FILES)
    return checkpoint.trunk if has else checkpoint.folder


def copied_files(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the files that come into a result: configs, tokenizer, code and licences, of all modules."""
    for folder in _folders(checkpoint):
        for path in sorted(folder.iterdir()):
            rule = _rule_of(path)
            if rule is not None and rule.copied and path.is_file():
                yield path


def files_not_copied(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return what does not come into a result by reason, as paths in the folder; folders end with a slash.

    The weights that a result gets anew are not named.
    """
    left: dict[str, list[str]] = {}
    weights = {s.file for s in checkpoint.specs.values()} if checkpoint.has_weights else set()
    inside = set(_folders(checkpoint))
    above = {parent for folder in inside for parent in folder.parents}
    for folder in inside - {checkpoint.folder / name for name in _FOLDERS}:
        for path in folder.iterdir():
            index = path.name == "model.safetensors.index.json"
            rule = _rule_of(path)
            if path in inside | above or path in weights or index:
                continue
            if rule is None or not rule.copied or path.is_dir():
                name = path.relative_to(checkpoint.folder).as_posix() + "/" * path.is_dir()
                left.setdefault(_reason(rule), []).append(name)
    return {reason: sorted(left[reason], key=_depth) for reason in sorted(left, key=_row)}


def hashed_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that decide its embeddings."""
    try:
        inside = [module.path for module in read_chain(folder)]
    except CheckpointError:
        inside = []  # the folder's check names the problem
    places = dict.fromkeys(folder / name for name in ("", *inside, *_FOLDERS))
    return [path for place in places if place.is_dir() for path in _hashed_in(place)]


def model_fingerprint(
    folder: Path, cache: HashCache | None = None, adapter: Path | None = None
) -> str:
    """Return a hash of all files in a model folder that decide its embeddings, and of those of an adapter.

    Raises:
        CheckpointError: when there is no file of a model.
    """
    names = {file.relative_to(folder).as_posix(): file for file in hashed_files(folder)}
    if not names:
        raise CheckpointError(f"{folder}: has no model: neither configs nor weights")
    remote = {name: RemoteFile.read(f).content for name, f in names.items() if is_remote(f)}
    parts = files_fingerprint({name: f for name, f in names.items() if name not in remote}, cache)
    parts = stable_hash([parts, remote]) if remote else parts
    if adapter is None:
        return parts
    return stable_hash([parts, model_fingerprint(adapter, cache)])


def published_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that belong to others' copies: all but states, records and hidden files."""
    for path in sorted(folder.iterdir()):
        rule = _rule_of(path)
        if rule is not None and rule.why in (_PLACE, _STATE, _RECORD):
            continue
        if path.is_dir():
            yield from published_files(path)
        elif path.is_file():
            yield path


def _hashed_in(folder: Path) -> list[Path]:
    rules = {path: _rule_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
    hashed = {path: rule.hashed for path, rule in rules.items() if rule is not None}
    alone = not any(path.suffix == ".safetensors" for path in hashed)
    return [p for p, how in hashed.items() if how == "yes" or (how == "alone" and alone)]


def _folders(checkpoint: Checkpoint) -> list[Path]:
    modules = [checkpoint.folder / module.path for module in checkpoint.chain]
    others = [checkpoint.folder / name for name in _FOLDERS]
    places = dict.fromkeys([checkpoint.folder, checkpoint.trunk, *modules, *others])
    return [place for place in places if place.is_dir()]


def _rule_of(path: Path) -> FileRule | None:
    names = (path.name, f"{path.name}/") if path.is_dir() else (path.name,)
    for rule in FILES:
        if any(fnmatch.fnmatch(name, pattern) for name in names for pattern in rule.patterns):
            return rule
    return None


def _reason(rule: FileRule | None) -> str:
    return _NO_MODEL if rule is None or rule.copied else rule.why


def _row(reason: str) -> int:
    return next((i for i, rule in enumerate(FILES) if rule.why == reason), len(FILES))


def _depth(name: str) -> tuple[int, str]:
    return name.rstrip("/").count("/"), name
