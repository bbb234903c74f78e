"""One step, run in its work folder and published: in this process, for a launcher, or as the first rank."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts import Artifact
from emberge.errors import EmbergeError, PluginError, exits_refused
from emberge.files import (
    lock_folder,
    make_folder,
)
from emberge.interpreter import pause_collections, return_freed_memory
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.workspace import RunContext, StepWorkspace
from emberge.results import ARTIFACT, OutFolder, artifact_record, read_artifact, read_record
from emberge.tensor_files import contents_of, noting_contents


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name; ignore errors, which the code that needs the module reports."""
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    with pause_collections(freeze=True):
        for name in missing:
            with suppress(Exception):
                importlib.import_module(name)


class ModuleLoader:
    """A thread that imports modules after it was started."""

    def __init__(self, names: Iterable[str]) -> None:
        self._thread = threading.Thread(
            target=import_modules, args=(tuple(names),), name="import", daemon=True
        )
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread, if it was not started before; may be called from any thread."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def wait(self) -> None:
        """Wait until all modules are imported, if the thread was started."""
        if self._thread.ident is not None:
            self._thread.join()


# Seconds to wait for another process that worked on the same step and is ending.
LEAVING = 20.0


@dataclass(frozen=True)
class PublishedStep:
    """The folder and artifact of a step that has just finished, and the seconds that it took."""

    folder: Path
    artifact: Artifact
    seconds: float


def run_step(
    step: RecipeStep,
    fingerprint: str,
    context: RunContext,
    inside: contextlib.AbstractContextManager[Any] | None = None,
) -> PublishedStep:
    """Run a step from where it was interrupted, publish its result by one rename, and return the result.

    The step runs inside the context manager `inside`, unless it is None. `OutFolder.finish` later links
    `OUT/<id>` and removes the work folder.

    Raises:
        OutInUseError: if another process still works on this step.
    """
    began = time.monotonic()
    out_folder, targets = context.place, context.targets
    with explain_disk_full(out_folder), _lock_work_folder(out_folder.work_of(step.id, fingerprint)):
        import_modules(step.step.loads)
        workspace = StepWorkspace(step, fingerprint, context)
        _clear_folder(workspace.folder)
        try:
            with noting_contents() as notes:
                with inside or contextlib.nullcontext(), exits_refused(f"step '{step.id}'"):
                    artifact = step.step.run(workspace)
                if not isinstance(artifact, Artifact):
                    raise PluginError(f"{step.kind}.run must return an Artifact, not {artifact!r}")
            warnings = tuple(dict.fromkeys((*artifact.warnings, *workspace.warnings)))
            artifact = dataclasses.replace(artifact, warnings=warnings)
            workspace.write_metrics()
            seconds = time.monotonic() - began
            files = contents_of(workspace.folder, leave=(ARTIFACT,), known=notes.of)
            inputs = targets.inputs(step.step)
            content = artifact_record(artifact, workspace.provenance, inputs, files, seconds)
            folder = out_folder.publish(step.id, fingerprint, content)
            targets.hashes.learn(
                {folder / name: file_content.hash for name, file_content in files.items()}
            )
        finally:
            workspace.close()
            return_freed_memory()
    return PublishedStep(folder, artifact, seconds)


def result_of(place: OutFolder, step: str, fingerprint: str) -> Artifact | None:
    """Return the artifact of the step's result with this fingerprint; None if there is no result."""
    folder = place.result(step, fingerprint)
    record = read_record(folder / ARTIFACT)
    return read_artifact(folder) if record.get("fingerprint") == fingerprint else None


@contextlib.contextmanager
def explain_disk_full(place: OutFolder) -> Iterator[None]:
    """Turn the OSError of a full disk into an EmbergeError that names OUT and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise EmbergeError(
            f"the disk of {place.path} is full; make room and run again: what is done is kept"
        ) from error


@contextlib.contextmanager
def _lock_work_folder(work: Path) -> Iterator[None]:
    """Lock the work folder against every other process, even on a machine that was assumed lost."""
    make_folder(work)
    with lock_folder(work / ".lock", patience=LEAVING):
        yield


def _clear_folder(folder: Path) -> None:
    """Remove files of a run that was killed after it filled its folder and before it was published."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
