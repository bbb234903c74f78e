"""Run one step in its work folder and publish what it made: alone, by a crew, or as the first of ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts.reference import Artifact
from emberge.errors import EmbergeError, PluginError
from emberge.files.atomic import make_folder
from emberge.files.locks import lock_folder
from emberge.recipes.folder.provenance import CHANGING, artifact_record
from emberge.recipes.folder.run_folder import ARTIFACT, OutFolder, read_artifact
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.workspace import RunContext, StepWorkspace
from emberge.tensor_files.content_hash import contents_of

__all__ = ["StepResult", "explain_disk_full", "result_of", "run_step"]

# How long to wait for a process that worked on the same step, and that is just ending.
LEAVING = 20.0


@dataclass(frozen=True)
class StepResult:
    """What a step has made: where it stands, what it is, and the seconds that it took."""

    folder: Path
    artifact: Artifact
    seconds: float


def run_step(
    step: RecipeStep,
    fingerprint: str,
    around: RunContext,
    inside: contextlib.AbstractContextManager[Any] | None = None,
) -> StepResult:
    """Run a step, which goes on if it was begun, and give its result its place by one rename.

    It is run `inside` of a context, if one is given. `OUT/<id>` and the work folder are left for
    `OutFolder.finish`.

    Raises:
        OutInUseError: when another process still works on this step.
    """
    began = time.monotonic()
    place, results = around.place, around.results
    with explain_disk_full(place), _held(place.work_of(step.id, fingerprint)):
        workspace = StepWorkspace(step, fingerprint, around)
        try:
            with inside or contextlib.nullcontext():
                artifact = _held_to_contract(step, step.step.run(workspace))
            warnings = tuple(dict.fromkeys((*artifact.warnings, *workspace.warnings)))
            artifact = dataclasses.replace(artifact, warnings=warnings)
            workspace.write_metrics()
            seconds = time.monotonic() - began
            files = contents_of(workspace.folder, leave=CHANGING)
            inputs = results.inputs(step.step)
            record = artifact_record(artifact, workspace.provenance, inputs, files, seconds)
            folder = place.publish(step.id, fingerprint, record)
            results.hashes.learn({folder / name: one.hash for name, one in files.items()})
        finally:
            workspace.close()
    return StepResult(folder, artifact, seconds)


def result_of(place: OutFolder, step: str, fingerprint: str) -> Artifact | None:
    """What a step left that was finished under this fingerprint; None when it was not."""
    folder = place.result(step, fingerprint)
    return read_artifact(folder) if _made_under(folder) == fingerprint else None


@contextlib.contextmanager
def explain_disk_full(place: OutFolder) -> Iterator[None]:
    """Say in one line that the disk of OUT is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise EmbergeError(
            f"the disk of {place.path} is full; make room and run again: what is done is kept"
        ) from error


@contextlib.contextmanager
def _held(work: Path) -> Iterator[None]:
    """Nobody else works there meanwhile: not even one whose machine was given up for lost."""
    make_folder(work)
    with lock_folder(work / ".lock", patience=LEAVING):
        yield


def _held_to_contract(step: RecipeStep, artifact: Any) -> Artifact:
    if not isinstance(artifact, Artifact):
        raise PluginError(f"{step.kind}.run must return an Artifact, not {artifact!r}")
    return artifact


def _made_under(folder: Path) -> str | None:
    try:
        made = json.loads((folder / ARTIFACT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(made.get("fingerprint")) if isinstance(made, dict) else None
