"""Files of a model folder: listed, hashed, copied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from emberge.errors import CheckpointError
from emberge.files import link_or_copy
from emberge.hashes import HashCache, stable_hash
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.file_table import (
    FILES,
    FOLDERS,
    PLACE,
    RECORD,
    STATE,
    FileRule,
    rule_of,
)
from emberge.model_folder.sound_folder import real_file, require_sound
from emberge.model_folder.st_layout import read_chain
from emberge.tensor_files import RemoteFile

_NO_MODEL = "no file of a model"


def copied_files(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the files that come into a result: configs, tokenizer and licences, of all modules.

    Raises:
        UnsoundFileError: for files and links that `require_sound` refuses.
    """
    for folder in _folders(checkpoint):
        require_sound(folder, checkpoint.folder)
        for path in sorted(folder.iterdir()):
            rule = _rule_of(path)
            if rule is not None and rule.copied and path.is_file():
                yield path


def copy_file(path: Path, out: Path, folder: Path, *, link: bool = False) -> None:
    """Copy a file of the model in `folder` to the path `out`, or with `link` give it a second name there.

    Raises:
        UnsoundFileError: for a link that leads out of the model's folder.
    """
    real = real_file(path, folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    if link:
        link_or_copy(str(real), str(out))
    else:
        out.unlink(missing_ok=True)
        shutil.copyfile(real, out)


def files_not_copied(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return what does not come into a result by reason, as paths in the folder; folders end with a slash.

    The weights that a result gets anew are not named.
    """
    left: dict[str, list[str]] = {}
    weights = {s.file for s in checkpoint.specs.values()} if checkpoint.has_weights else set()
    inside = set(_folders(checkpoint))
    above = {parent for folder in inside for parent in folder.parents}
    for folder in inside - {checkpoint.folder / name for name in FOLDERS}:
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
    places = dict.fromkeys(folder / name for name in ("", *inside, *FOLDERS))
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
    remote = {
        name: RemoteFile.read(f).content for name, f in names.items() if RemoteFile.is_note(f)
    }
    parts = (cache or HashCache()).of_files(
        {name: f for name, f in names.items() if name not in remote}
    )
    parts = stable_hash([parts, remote]) if remote else parts
    if adapter is None:
        return parts
    return stable_hash([parts, model_fingerprint(adapter, cache)])


def published_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that others get: no states, records, hidden files or links."""
    for path in sorted(folder.iterdir()):
        rule = _rule_of(path)
        if path.is_symlink():
            continue
        if rule is not None and rule.why in (PLACE, STATE, RECORD):
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
    others = [checkpoint.folder / name for name in FOLDERS]
    places = dict.fromkeys([checkpoint.folder, checkpoint.trunk, *modules, *others])
    return [place for place in places if place.is_dir()]


def _rule_of(path: Path) -> FileRule | None:
    return rule_of(path.name, folder=path.is_dir())


def _reason(rule: FileRule | None) -> str:
    return _NO_MODEL if rule is None or rule.copied else rule.why


def _row(reason: str) -> int:
    return next((i for i, rule in enumerate(FILES) if rule.why == reason), len(FILES))


def _depth(name: str) -> tuple[int, str]:
    return name.rstrip("/").count("/"), name
