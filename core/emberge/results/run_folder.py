"""The layout of an OUT folder, in which a result is published by one rename.

    OUT/<id>                      a relative link to the current result
    OUT/<id>-<fingerprint>/       a result; finished when it has an `artifact.json`
    OUT/.work/<id>-<fingerprint>/ a step that is not finished; `output` in it becomes the result
    OUT/.store/                   a cache that all steps share
    OUT/.lock  OUT/.status.json  OUT/metrics.jsonl  OUT/run.log  OUT/recipe.yaml

No file and no link in OUT has an absolute path, so that OUT may be moved.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from emberge.errors import EmbergeError
from emberge.files import clear_torn, make_folder, publish, replace_link, sync_tree, write_json
from emberge.results.artifact_file import ARTIFACT

PROGRESS = "progress.json"
"""The name of the file in a step's work folder that says how far the step is."""


class OutFolder:
    """The folder of a recipe's results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / ".work"
        """The folder of unfinished steps."""
        self.store = path / ".store"
        """The cache that all steps share."""
        self.lock = path / ".lock"
        """The file that a run locks."""
        self.status = path / ".status.json"
        """The file with the states of the last run's steps."""

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
                f"{self.path} cannot be written ({error.strerror}); choose another folder"
            ) from error

    def require_own(self, recipe: str, steps: Iterable[str]) -> None:
        """Require that a run of `steps` replaces nothing of the user's own, such as another recipe.yaml.

        Raises:
            EmbergeError: if it would.
        """
        path = self.path / "recipe.yaml"
        is_kept = not path.is_file() or recipe.encode() in (b"", path.read_bytes())
        if not (is_kept or self.status.is_file()):
            raise EmbergeError(
                f"{path} was written by no run, and this one would replace it; name another folder"
            )
        for step in steps:
            self._require_free(self.locate_link(step))

    def clear_torn(self) -> None:
        """Remove what killed runs left incomplete; call this under the lock."""
        clear_torn(self.path)
        clear_torn(self.work)
        clear_torn(self.store, deep=True)

    def describe_full_disk(self, work: Path | None = None) -> str:
        """Return the message about a full disk, with the remedy, for a step that works in `work`."""
        step = self.find_saved_step(work) if work is not None else None
        kept = "" if step is None else f", and this one goes on after optimizer step {step:,}"
        return f"the disk of {self.path} is full; make room and run again: finished steps are kept{kept}"

    @staticmethod
    def find_saved_step(work: Path) -> int | None:
        """Return the optimizer step of the newest training state in a step's work folder; None without."""
        names = [path.name.removeprefix("step-") for path in (work / "states").glob("step-*")]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def locate_link(self, step: str) -> Path:
        """Return `OUT/<id>`, the link to the step's current result."""
        return self.path / name_folder(step)

    def locate_result(self, step: str, fingerprint: str) -> Path:
        """Return the folder of the step's result, which exists once the step is finished."""
        return self.path / f"{name_folder(step)}-{fingerprint[:8]}"

    def locate_work(self, step: str, fingerprint: str) -> Path:
        """Return the folder in which a step works until its result is published."""
        return self.work / self.locate_result(step, fingerprint).name

    def publish_result(self, step: str, fingerprint: str, record: Mapping[str, Any]) -> None:
        """Publish a filled `output` as the step's result: sync all files, write `artifact.json`, rename once.

        `finish_step` then makes `OUT/<id>` a link to the result.
        """
        work, result = self.locate_work(step, fingerprint), self.locate_result(step, fingerprint)
        output = work / "output"
        clear_torn(output, deep=True)
        mode = output.stat().st_mode & 0o666
        for path in output.rglob("*.safetensors"):
            if path.stat().st_mode & mode != mode:  # safetensors lets only the owner read its files
                path.chmod(mode)
        sync_tree(output)
        write_json(output / ARTIFACT, record)
        if result.exists():  # a user removed its artifact.json so that the step runs again
            os.rename(result, work / "replaced")
        publish(output, result)

    def finish_step(self, step: str, fingerprint: str) -> None:
        """Link `OUT/<id>` to the result and remove the work folder."""
        result, link = self.locate_result(step, fingerprint), self.locate_link(step)
        self._require_free(link)
        if not link.is_symlink() or os.readlink(link) != result.name:
            replace_link(link, result.name)
        shutil.rmtree(self.locate_work(step, fingerprint), ignore_errors=True)

    def _require_free(self, link: Path) -> None:
        if link.exists() and not link.is_symlink():
            raise EmbergeError(
                f"{link} is in the way: a link to a step's result belongs there; move it elsewhere"
            )


def list_current_results(out: Path) -> list[Path]:
    """Return the links in OUT that lead to steps' current results."""
    return sorted(path for path in out.iterdir() if path.is_symlink() and path.is_dir())


def name_folder(step: str) -> str:
    """Return the name of the folder for a step's id; an id that a file system may refuse gets a hash."""
    safe_id = re.sub(r"[^\w.=+,@-]", "_", step).lstrip(".")[:100]
    if safe_id == step:
        return safe_id
    return f"{safe_id}-{hashlib.sha256(step.encode()).hexdigest()[:6]}"


def measure_folder(folder: Path) -> int:
    """Return the bytes of all files in a folder; links are not followed."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a running step removed it meanwhile
                total += os.lstat(os.path.join(where, name)).st_size
    return total


class NoRunError(EmbergeError):
    """Error: no recipe was run in the folder, or its status file is damaged."""

    exit_code = 2
