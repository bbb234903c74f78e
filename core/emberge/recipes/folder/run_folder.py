"""The layout of an OUT folder, and the publishing of a result there by one rename.

    OUT/<id>                      a relative link to the current result
    OUT/<id>-<fingerprint>/       a result; finished when it has an `artifact.json`
    OUT/.work/<id>-<fingerprint>/ a step that is not finished; `output` in it becomes the result
    OUT/.store/                   a cache that all steps share
    OUT/.lock  OUT/.status.json  OUT/metrics.jsonl  OUT/run.log  OUT/recipe.yaml

Nothing in it is an absolute path, so that OUT may be moved.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts import Artifact
from emberge.errors import EmbergeError
from emberge.files import (
    claim_folder,
    clear_torn,
    make_folder,
    publish,
    read_json,
    replace_link,
    require_ours,
    require_tree_ours,
    sync,
    sync_tree,
    write_json,
)

ARTIFACT = "artifact.json"


@dataclass(frozen=True)
class OutFolder:
    """The folder of a recipe's results."""

    path: Path

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            EmbergeError: when it cannot be created or is a file.
            NotOursError: when another user made it, or `.work`, `.store` or something in
                the latter is a link.
        """
        try:
            make_folder(self.path)
            require_ours(self.path.resolve())
            for folder in (self.work, self.store):
                if claim_folder(folder):
                    sync(self.path)
            require_tree_ours(self.store)
            clear_torn(self.path)
        except OSError as error:
            raise EmbergeError(
                f"{self.path} cannot be written ({error.strerror}); choose another --out"
            ) from error

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
        """Return the folder of the step's result once it is finished."""
        return self.path / f"{folder_name(step)}-{fingerprint[:8]}"

    def work_of(self, step: str, fingerprint: str) -> Path:
        """Return the folder in which the step works until then."""
        return self.work / self.result(step, fingerprint).name

    def publish(self, step: str, fingerprint: str, record: Mapping[str, Any]) -> Path:
        """Make a filled `output` the step's result: all on disk, then `artifact.json`, then one rename.

        `finish` then lets `OUT/<id>` lead to it.
        """
        work, result = self.work_of(step, fingerprint), self.result(step, fingerprint)
        output = work / "output"
        clear_torn(output, deep=True)
        sync_tree(output)
        write_json(output / ARTIFACT, record)
        if result.exists():  # its artifact.json was removed by hand, to have the step run again
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


def folder_name(step: str) -> str:
    """Return a step's id as the name of a folder; ids that a file system may not take get a hash."""
    safe = re.sub(r"[^\w.=+,@-]", "_", step).lstrip(".")[:100]
    if safe == step:
        return safe
    return f"{safe}-{hashlib.sha256(step.encode()).hexdigest()[:6]}"


def read_artifact(folder: Path) -> Artifact | None:
    """Read the artifact of a finished step; None when the folder is no finished result.

    Raises:
        EmbergeError: for an artifact.json that cannot be understood.
    """
    try:
        return Artifact.of(read_json(folder / ARTIFACT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise EmbergeError(
            f"{folder / ARTIFACT} is damaged ({error}); remove it to have the step run again"
        ) from error


class NoRunError(EmbergeError):
    """A folder in which no recipe was run."""

    exit_code = 2
