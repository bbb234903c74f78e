"""The files of a repository that make a model, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal

Files = Literal["all", "metadata", "ranges"]
METADATA = (
    "*.json",
    "*.txt",
    "*.model",
    "*.jinja",
    "*.tiktoken",
    "*.vocab",
    "*.bpe",
    "*.spm",
    "*.codes",
    "*.py",
    "*.metadata",
    "README.md",
    "LICENSE*",
    "NOTICE*",
)
OTHER_FORMATS = ("onnx/*", "openvino/*", "coreml/*", "original/*", "gguf/*")
PICKLE = ".bin"


def metadata_among(names: Iterable[str]) -> list[str]:
    """Return the names of configs, tokenizers, code and licences."""
    return [str(p) for p in _own(names) if any(p.match(pattern) for pattern in METADATA)]


def weights_among(names: Iterable[str]) -> list[str]:
    """Return the names of each folder's safetensors, or of its pickles if it has none."""
    paths = _own(names)
    safe = [p for p in paths if p.suffix == ".safetensors"]
    folders = {p.parent for p in safe}
    pickles = [p for p in paths if p.suffix == PICKLE and p.parent not in folders]
    return [str(p) for p in (*safe, *pickles)]


def _own(names: Iterable[str]) -> Sequence[PurePosixPath]:
    paths = [PurePosixPath(name) for name in names]
    return [p for p in paths if not any(p.match(pattern) for pattern in OTHER_FORMATS)]
