"""The verification of a finished result: each file compared with the hash that its artifact.json has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.contracts import MergeDetails
from emberge.errors import CheckpointError, EmbergeError
from emberge.files import read_json
from emberge.hashes import FileContent, HashCache
from emberge.model_folder import list_hashed_files
from emberge.results.artifact_file import ARTIFACT, read_artifact, read_record
from emberge.results.run_folder import OutFolder
from emberge.wording import count_noun, join_some

CHANGING_FILES = ("README.md",)
"""Files of a result that may change after its step: a card is its reader's to correct."""
_DESCRIBED_KEYS = ("kind", "step", "component", "seed", "versions")
_VOCABULARY_FILES = ("vocab.txt", "merges.txt")  # other texts in a model's folder are users' notes


class UnsoundResultError(CheckpointError):
    """A finished result whose files changed after its step."""


def require_sound_result(folder: Path, hashes: HashCache | None = None) -> None:
    """Require that the files of a finished result have not changed since its step.

    A result without artifact.json passes, as there is nothing to compare. `CHANGING_FILES` may change.

    Raises:
        UnsoundResultError: if a file is missing, is a link or has another content, or if a file was added to
            a model.
    """
    differences = list(find_differences(folder, hashes))
    if differences:
        raise UnsoundResultError(
            f"{folder.resolve()}: not as its step left it: {join_some(differences)}; put that right, or "
            "remove the folder to have the step run again"
        )


def require_sound_weights(folder: Path, hashes: HashCache) -> None:
    """Require that the weights of a model have not changed since its step; one without a record passes.

    Raises:
        UnsoundResultError: if a file of weights has another content.
    """
    files = read_record(folder / ARTIFACT).get("files", {})
    for path in list_hashed_files(folder) if files else ():
        recorded = FileContent.from_plain(files.get(path.relative_to(folder).as_posix()))
        is_weights = path.suffix == ".safetensors"
        if is_weights and recorded is not None and hashes.of(path) != recorded.xxh3:
            raise UnsoundResultError(
                f"{path} was changed after its step; `emberge verify {folder}` shows what to do"
            )


def find_differences(folder: Path, hashes: HashCache | None = None) -> Iterator[str]:
    """Yield a problem for each file of a finished result that differs from the published file."""
    folder = folder.resolve()
    if not (folder / ARTIFACT).is_file():
        return
    try:
        record = read_json(folder / ARTIFACT)
        listed = {name: FileContent.from_plain(entry) for name, entry in record["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        yield f"{ARTIFACT} ({error!r})"
        return
    lacking_keys = [key for key in _DESCRIBED_KEYS if key not in record]
    if lacking_keys:
        yield f"{ARTIFACT} (it has no {join_some(lacking_keys)})"
    hashes = hashes or HashCache()
    for name, recorded in listed.items():
        if name not in CHANGING_FILES:
            yield from _compare_file(folder, name, recorded, hashes)
    if record.get("kind") == "model":
        yield from _find_added_files(folder, listed)


def _find_added_files(folder: Path, listed: Mapping[str, object]) -> Iterator[str]:
    """Yield a problem for each file of a model that is not among those listed."""
    try:
        paths = list_hashed_files(folder)
    except EmbergeError as error:  # a link that leads out of the folder
        yield str(error)
        return
    for path in paths:
        name = path.relative_to(folder).as_posix()
        is_note = path.suffix == ".txt" and path.name not in _VOCABULARY_FILES
        if name not in listed and name not in CHANGING_FILES and not is_note:
            yield f"{name} was added"


def _compare_file(
    folder: Path, name: str, recorded: FileContent | None, hashes: HashCache
) -> Iterator[str]:
    path = folder / name
    if recorded is None or ".." in path.parts:
        yield f"{ARTIFACT} (its entry of {name})"
    elif path.is_symlink() or not path.is_file():
        yield f"{name} is missing"
    elif path.stat().st_size != recorded.size or hashes.of(path) != recorded.xxh3:
        yield f"{name} was changed"


def verify_result(folder: Path) -> list[str]:
    """Compare every file of a result with its artifact.json, and return lines that say what it is.

    The folder may have been copied anywhere.

    Raises:
        CheckpointError: if the folder is missing or no result.
        EmbergeError: if there are differences; has a line for each, and the remedy.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    if not (folder / ARTIFACT).is_file():
        results = sorted(p.parent for p in folder.glob(f"*/{ARTIFACT}") if p.parent.is_symlink())
        hint = f"; name one of the results in it: {results[0]}" if results else ""
        raise CheckpointError(f"{folder}: has no {ARTIFACT}, so it is no result of emberge{hint}")
    # A finished result is not made again as long as it is there, and OUT/<id> is only a link to it.
    path = folder.resolve()
    run = f"run the recipe again (`emberge run RECIPE --out {path.parent}`)"
    is_step = OutFolder(path.parent).status.is_file()  # `emberge merge` leaves a folder alone
    again = f"or remove {path} and {run if is_step else 'repeat the command that made it'}"
    remedy = f"get it again from where the folder came from, {again}"
    differences = [
        f"{difference}; {'move it elsewhere' if difference.endswith(' was added') else remedy}"
        for difference in find_differences(folder)
    ]
    if differences:
        raise EmbergeError("\n".join(differences))
    return list(_describe_result(folder, read_json(folder / ARTIFACT)))


def _describe_result(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{folder}: {record['kind']} of step '{record['step']}' ({record['component']})"
    yield f"{count_noun(len(record['files']), 'file')} as published"
    artifact = read_artifact(folder)
    if artifact is not None and isinstance(artifact.details, MergeDetails):
        chain = artifact.details.strategy
        names = [link if isinstance(link, str) else next(iter(link)) for link in chain]
        version = record["versions"].get("emberge")
        yield f"{' → '.join(names)}, seed {record['seed']}, emberge {version}"
