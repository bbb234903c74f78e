"""Fingerprints of a model's weights and of its tokenizer, whatever else is in its folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.file_table import TOKENIZER_FILES
from emberge.tensor_files import FileContent, current_notes


def content_fingerprints(folder: Path) -> tuple[str, str]:
    """Return hashes of a model's tensors by name, however they are sharded, and of its tokenizer's files.

    Raises:
        CheckpointError: for weights that cannot be read.
    """
    checkpoint = Checkpoint(folder)
    files = {spec.file for spec in checkpoint.specs.values()}
    known = {file: _content(file).tensors for file in files}
    weights = hashlib.sha256()
    for name, spec in sorted(checkpoint.specs.items()):
        own = known[spec.file]
        stored = next((n for n in own if n == name or name.endswith(f".{n}")), name)
        weights.update(f"{name} {spec.dtype} {list(spec.shape)} {own.get(stored)}\n".encode())
    tokenizer = hashlib.sha256()
    for path in (checkpoint.tokenizer_folder / name for name in TOKENIZER_FILES):
        if path.is_file():
            tokenizer.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return weights.hexdigest(), tokenizer.hexdigest()


def _content(file: Path) -> FileContent:
    """Return the content of a file, from notes where it is in them: a result's weights are read once."""
    notes = current_notes()
    content = notes.of(file) if notes else None
    if content is None:
        content = FileContent.of_file(file)
        if notes:
            notes.note(file, content)
    return content
