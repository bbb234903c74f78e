"""The table of files in a model folder: which are copied into a result, and which decide embeddings."""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass
from typing import Literal

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

FOLDERS = ("additional_chat_templates",)
"""Folders with files of a model, beside the trunk's and the modules'."""


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


PLACE = "of the repository, not of the model"
_PASSPORT = "the passport of another model's space"
_CARD = "a card of its own is written"
STATE = "a training's state"
RECORD = "a training's record"
_ADAPTER = "an adapter beside the weights"
_WEIGHTS = "the weights"
_OTHER_WEIGHTS = "weights in another format"
_LICENCE = "terms that bind whoever has a copy"
_MODEL = "what the model is made of beside its weights"
_CODE = "code, which a result never has"

FILES = (
    FileRule((".*",), False, "no", PLACE),
    FileRule(("README*", "artifact.json", "model_card*"), False, "no", _CARD),
    FileRule(("space.json",), False, "no", _PASSPORT),
    FileRule(("optimizer*", "scheduler*", "rng_state*", "scaler*"), False, "no", STATE),
    FileRule(("training_args.*", "zero_to_fp32.py", "latest"), False, "no", STATE),
    FileRule(("checkpoint-*/", "checkpoints/", "global_step*/"), False, "no", STATE),
    FileRule(("trainer_state.json",), False, "no", STATE),
    FileRule(("all_results.json", "train_results.json", "eval_results.json"), False, "no", RECORD),
    FileRule(("metrics.jsonl", "events.out.*", "*_results.csv"), False, "no", RECORD),
    FileRule(("eval/", "runs/", "logs/", "wandb/", "bags/"), False, "no", RECORD),
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
    FileRule(("*.spm", "*.bpe", "*.codes", "*.vocab"), True, "yes", _MODEL),
    FileRule(("*.py",), False, "yes", _CODE),
    FileRule(("*.metadata",), True, "yes", _MODEL),  # ColBERT's lengths and marker tokens
)
"""The table; the first row that fits decides."""


@functools.cache
def rule_of(name: str, *, folder: bool = False) -> FileRule | None:
    """Return the row of the table for a file's or a folder's name; None for what is no file of a model."""
    names = (name, f"{name}/") if folder else (name,)
    for rule in FILES:
        if any(fnmatch.fnmatch(one, pattern) for one in names for pattern in rule.patterns):
            return rule
    return None
