"""The layout of an OUT folder, results published there by one rename, and artifact.json of each.

    OUT/<id>                      a relative link to the current result
    OUT/<id>-<fingerprint>/       a result; finished when it has an `artifact.json`
    OUT/.work/<id>-<fingerprint>/ a step that is not finished; `output` in it becomes the result
    OUT/.store/                   a cache that all steps share
    OUT/.lock  OUT/.status.json  OUT/metrics.jsonl  OUT/run.log  OUT/recipe.yaml

Nothing in it is an absolute path, so that OUT may be moved.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge.contracts import Artifact
from emberge.errors import CheckpointError, EmbergeError, PluginError
from emberge.files import (
    clear_torn,
    make_folder,
    publish,
    read_json,
    replace_link,
    sync_tree,
    write_json,
)
from emberge.hashes import HashCache
from emberge.model_folder import list_hashed_files
from emberge.tensor_files import FileContent
from emberge.wording import count_noun, join_some

ARTIFACT = "artifact.json"
PROGRESS = "progress.json"


@dataclass(frozen=True)
class OutFolder:
    """The folder of a recipe's results."""

    path: Path

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            EmbergeError: if the folder cannot be created or is a file.
        """
        try:
            for folder in (self.work, self.store):
                make_folder(folder)
        except OSError as error:
            raise EmbergeError(
                f"{self.path} cannot be written ({error.strerror}); choose another --out"
            ) from error

    def clear_torn(self) -> None:
        """Remove what killed runs left incomplete; call this under the lock."""
        clear_torn(self.path)
        clear_torn(self.work)
        clear_torn(self.store, deep=True)

    def describe_full_disk(self) -> str:
        """Return the message about a full disk, with the remedy."""
        return f"the disk of {self.path} is full; make room and run again: what is done is kept"

    @property
    def work(self) -> Path:
        """The folder of unfinished steps."""
        return self.path / ".work"

    @property
    def store(self) -> Path:
        """The cache that all steps share."""
        return self.path / ".store"

    @property
    def lock(self) -> Path:
        """The file that a run locks."""
        return self.path / ".lock"

    @property
    def status(self) -> Path:
        """The file with the states of the last run's steps."""
        return self.path / ".status.json"

    def link(self, step: str) -> Path:
        """Return `OUT/<id>`, the link to the step's current result."""
        return self.path / folder_name(step)

    def result(self, step: str, fingerprint: str) -> Path:
        """Return the folder of the step's result, which exists once the step is finished."""
        return self.path / f"{folder_name(step)}-{fingerprint[:8]}"

    def work_of(self, step: str, fingerprint: str) -> Path:
        """Return the folder in which a step works until its result is published."""
        return self.work / self.result(step, fingerprint).name

    def publish(self, step: str, fingerprint: str, record: Mapping[str, Any]) -> Path:
        """Publish a filled `output` as the step's result: sync all files, write `artifact.json`, rename once.

        `finish` then makes `OUT/<id>` a link to the result.
        """
        work, result = self.work_of(step, fingerprint), self.result(step, fingerprint)
        output = work / "output"
        clear_torn(output, deep=True)
        sync_tree(output)
        write_json(output / ARTIFACT, record)
        if result.exists():  # a user removed its artifact.json so that the step runs again
            os.rename(result, work / "replaced")
        publish(output, result)
        return result

    def finish(self, step: str, fingerprint: str) -> None:
        """Link `OUT/<id>` to the result and remove the work folder."""
        result, link = self.result(step, fingerprint), self.link(step)
        if link.exists() and not link.is_symlink():
            raise EmbergeError(
                f"{link} is in the way: a link to {result.name} belongs there; move it elsewhere"
            )
        if not link.is_symlink() or os.readlink(link) != result.name:
            replace_link(link, result.name)
        shutil.rmtree(self.work_of(step, fingerprint), ignore_errors=True)


def results_in(out: Path) -> list[Path]:
    """Return the links in OUT that lead to steps' current results."""
    return sorted(path for path in out.iterdir() if path.is_symlink() and path.is_dir())


def folder_name(step: str) -> str:
    """Return a step's id as the name of a folder; ids that a file system may refuse get a hash."""
    safe_id = re.sub(r"[^\w.=+,@-]", "_", step).lstrip(".")[:100]
    if safe_id == step:
        return safe_id
    return f"{safe_id}-{hashlib.sha256(step.encode()).hexdigest()[:6]}"


def read_artifact(folder: Path) -> Artifact | None:
    """Read the artifact of a finished step; return None if the folder is not a finished result.

    Raises:
        EmbergeError: if artifact.json cannot be understood.
    """
    try:
        return Artifact.of(read_json(folder / ARTIFACT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise EmbergeError(
            f"{folder / ARTIFACT} is damaged ({error}); remove it to have the step run again"
        ) from error


def read_record(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that a run wrote; empty if it is missing or damaged."""
    try:
        record = read_json(path)
    except (OSError, ValueError, CheckpointError):
        return {}
    return record if isinstance(record, dict) else {}


def measure_folder(folder: Path) -> int:
    """Return the bytes of all files in a folder; links are not followed."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a running step removed it meanwhile
                total += os.lstat(os.path.join(where, name)).st_size
    return total


class NoRunError(EmbergeError):
    """A folder in which no recipe was run."""

    exit_code = 2


CHANGING = ("README.md",)
"""Files of a result that may change after its step: a card is its reader's to correct."""
_DIFFERENCE_REMEDY = "get it again from where the folder came from, or run the recipe again"
_VOCABULARIES = ("vocab.txt", "merges.txt")  # other texts in a model's folder are users' notes


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a step: its text in the recipe, its name in tables, its content's hash.

    The content of a `step` is its fingerprint. For a catalogue of `data`, `only` names the sets that were
    used, unless all were used.
    """

    reference: str
    name: str
    content: str
    kind: Literal["model", "data", "hub data", "step"] = "model"
    only: tuple[str, ...] = ()


def artifact_record(
    artifact: Artifact,
    provenance: Mapping[str, Any],
    inputs: Sequence[Input],
    files: Mapping[str, FileContent],
    seconds: float,
) -> dict[str, Any]:
    """Return the content of artifact.json: the step's artifact, its provenance, and the hash of each file.

    Raises:
        PluginError: if the artifact's details cannot be written as JSON.
    """
    facts = dict(provenance)
    component = facts.pop("kind")
    record = {
        **dataclasses.asdict(artifact),
        **facts,
        "component": component,
        "seconds": round(seconds, 3),
        "inputs": [_build_input_entry(input_) for input_ in inputs],
        "files": {name: content.plain() for name, content in files.items()},
    }
    try:
        json.dumps(record)
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"the details of the artifact of {component} are no JSON: {error}"
        ) from error
    return record


def _build_input_entry(input_: Input) -> dict[str, Any]:
    entry = dataclasses.asdict(input_)
    return entry if input_.only else {k: v for k, v in entry.items() if k != "only"}


class UnsoundResultError(CheckpointError):
    """A finished result whose files changed after its step."""


def require_sound_result(folder: Path, hashes: HashCache | None = None) -> None:
    """Require that the files of a finished result have not changed since its step.

    A result without artifact.json passes, as there is nothing to compare. The files of `CHANGING` may change.

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
    hashes = hashes or HashCache()
    for name, recorded in listed.items():
        if name not in CHANGING:
            yield from _compare_file(folder, name, recorded, hashes)
    for path in list_hashed_files(folder) if record.get("kind") == "model" else ():
        name = path.relative_to(folder).as_posix()
        is_note = path.suffix == ".txt" and path.name not in _VOCABULARIES
        if name not in listed and name not in CHANGING and not is_note:
            yield f"{name} was added"


def _compare_file(
    folder: Path, name: str, recorded: FileContent | None, hashes: HashCache
) -> Iterator[str]:
    path = folder / name
    if recorded is None or ".." in path.parts:
        yield f"{ARTIFACT} (its entry of {name})"
    elif path.is_symlink() or not path.is_file():
        yield f"{name} is missing"
    elif path.stat().st_size != recorded.size or hashes.of(path) != recorded.hash:
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
    differences = [f"{difference}; {_DIFFERENCE_REMEDY}" for difference in find_differences(folder)]
    if differences:
        raise EmbergeError("\n".join(differences))
    return list(_describe_result(folder, read_json(folder / ARTIFACT)))


def _describe_result(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{folder}: {record['kind']} of step '{record['step']}' ({record['component']})"
    yield f"{count_noun(len(record['files']), 'file')} as published"
    chain = record["details"].get("strategy")
    if isinstance(chain, list):
        names = [next(iter(link)) if isinstance(link, Mapping) else link for link in chain]
        version = record["versions"].get("emberge")
        yield f"{' → '.join(names)}, seed {record['seed']}, emberge {version}"
