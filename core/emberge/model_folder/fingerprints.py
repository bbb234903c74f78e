"""Fingerprints of models: hashes of all files that decide embeddings."""

from __future__ import annotations

from pathlib import Path

from emberge.errors import CheckpointError
from emberge.hashes import HashCache, stable_hash
from emberge.model_folder.folder_files import FOLDERS, rule_of
from emberge.model_folder.st_layout import read_chain
from emberge.tensor_files import RemoteFile


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
