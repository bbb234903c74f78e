"""Fingerprints of models: of all files that decide embeddings, or of weights and tokenizer only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from emberge.errors import CheckpointError
from emberge.hashes import HashCache, stable_hash
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import FOLDERS, TOKENIZER_FILES, rule_of
from emberge.model_folder.st_layout import read_chain
from emberge.tensor_files import FileContent, RemoteFile, current_notes


def content_fingerprints(folder: Path) -> tuple[str, str]:
    """Return hashes of a model's tensors, independent of shards, and of its tokenizer's files.

    Raises:
        CheckpointError: if weights cannot be read.
    """
    checkpoint = Checkpoint(folder)
    files = {spec.file for spec in checkpoint.specs.values()}
    hashes_by_file = {file: _read_content(file).tensors for file in files}
    weights = hashlib.sha256()
    for name, spec in sorted(checkpoint.specs.items()):
        hashes = hashes_by_file[spec.file]
        stored_name = next((n for n in hashes if n == name or name.endswith(f".{n}")), name)
        weights.update(
            f"{name} {spec.dtype} {list(spec.shape)} {hashes.get(stored_name)}\n".encode()
        )
    tokenizer = hashlib.sha256()
    for path in (checkpoint.tokenizer_folder / name for name in TOKENIZER_FILES):
        if path.is_file():
            tokenizer.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return weights.hexdigest(), tokenizer.hexdigest()


def _read_content(file: Path) -> FileContent:
    """Return the hashes of a file's content, from notes if they have them, else by reading the file."""
    notes = current_notes()
    content = notes.of(file) if notes else None
    if content is None:
        content = FileContent.of_file(file)
        if notes:
            notes.note(file, content)
    return content


def hashed_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that decide its embeddings."""
    try:
        inside = [module.path for module in read_chain(folder)]
    except CheckpointError:
        inside = []  # the folder's check names the problem
    places = dict.fromkeys(folder / name for name in ("", *inside, *FOLDERS))
    return [path for place in places if place.is_dir() for path in _list_hashed(place)]


def model_fingerprint(
    folder: Path, cache: HashCache | None = None, adapter: Path | None = None
) -> str:
    """Return a hash of all files that decide a model's embeddings, including an adapter's.

    Raises:
        CheckpointError: if the folder has no file of a model.
    """
    names = {file.relative_to(folder).as_posix(): file for file in hashed_files(folder)}
    if not names:
        raise CheckpointError(f"{folder}: has no model: neither configs nor weights")
    remote_hash_by_name = {
        name: RemoteFile.read(f).content for name, f in names.items() if RemoteFile.is_note(f)
    }
    files_hash = (cache or HashCache()).of_files(
        {name: f for name, f in names.items() if name not in remote_hash_by_name}
    )
    files_hash = (
        stable_hash([files_hash, remote_hash_by_name]) if remote_hash_by_name else files_hash
    )
    if adapter is None:
        return files_hash
    return stable_hash([files_hash, model_fingerprint(adapter, cache)])


def _list_hashed(folder: Path) -> list[Path]:
    rules = {path: rule_of(path.name) for path in sorted(folder.iterdir()) if path.is_file()}
    treatment_by_path = {path: rule.hashed for path, rule in rules.items() if rule is not None}
    has_no_safetensors = not any(path.suffix == ".safetensors" for path in treatment_by_path)
    return [
        p
        for p, how in treatment_by_path.items()
        if how == "yes" or (how == "alone" and has_no_safetensors)
    ]
