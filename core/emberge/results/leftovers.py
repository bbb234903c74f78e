"""Leftovers of runs in an OUT: found, shown with their sizes, and removed.

Old results are results to which no link in OUT leads: options or inputs changed, and the step ran again. Work
is left behind if a recipe was changed before its step was finished. Work that the last run would continue is
kept, and so is work that another process has locked. Only folders that have the name and form of a run's are
removed, and links are not followed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.errors import EmbergeError, OutInUseError
from emberge.files import FileLock, build_side_name, sync
from emberge.results.artifact_file import ARTIFACT, read_record
from emberge.results.run_folder import NoRunError, OutFolder, measure_folder, name_folder

# Name of a step's work folder: its id as a folder's name, and the first digits of its fingerprint.
_WORK_NAME = re.compile(r"(?P<step>.+)-[0-9a-f]{8}")


@dataclass(frozen=True)
class Leftover:
    """Leftover of a run: its folder, its description, and its size in bytes."""

    path: Path
    description: str
    size: int


def find_leftovers(out: Path) -> list[Leftover]:
    """Return the leftovers in an OUT.

    Raises:
        NoRunError: if no recipe was run in `out`.
        OutInUseError: if a run works in `out` now.
    """
    out_folder = OutFolder(Path(out).resolve())
    if not _is_real_folder(out_folder.work) and not out_folder.status.is_file():
        raise NoRunError(f"{out} has no run of a recipe")
    holder = FileLock(out_folder.lock).find_holder()
    if holder is not None:
        raise OutInUseError(
            f"{out_folder.path} is in use by {holder}; clean it when that has ended, nothing was removed"
        )
    return list(_measure_leftovers(out_folder))


def remove_leftovers(out: Path, confirmed: Collection[Path]) -> list[Leftover]:
    """Remove the `confirmed` leftovers that still are leftovers, and return these.

    Raises:
        OutInUseError: if a run works in `out` now.
        EmbergeError: if a leftover cannot be removed.
    """
    out_folder = OutFolder(Path(out).resolve())
    with FileLock(out_folder.lock).lock():
        removable = [one for one in _measure_leftovers(out_folder) if one.path in confirmed]
        for leftover in removable:
            _remove_folder(leftover.path)
    return removable


def _measure_leftovers(out_folder: OutFolder) -> Iterator[Leftover]:
    steps = read_record(out_folder.status).get("steps")
    listed = steps if isinstance(steps, list) else []
    last_steps = [s for s in listed if isinstance(s, dict) and {"id", "state"} <= s.keys()]
    for path in _find_old_results(out_folder, last_steps):
        yield Leftover(path, "old result", measure_folder(path))
    for path in _find_old_work(out_folder, last_steps):
        yield Leftover(path, "old work", measure_folder(path))


def _is_real_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to a folder."""
    return path.is_dir() and not path.is_symlink()


def _find_old_results(out_folder: OutFolder, last_steps: list[dict[str, Any]]) -> Iterator[Path]:
    linked = [path.resolve() for path in out_folder.path.iterdir() if path.is_symlink()]
    # A run that was killed while it published a result uses the result later, even without a link.
    current = {str(step.get(key)) for step in last_steps for key in ("folder", "work")}
    for path in sorted(filter(_is_real_folder, out_folder.path.iterdir())):
        record = read_record(path / ARTIFACT)
        expected = out_folder.locate_result(str(record.get("step")), str(record.get("fingerprint")))
        is_linked = any(path == target or path in target.parents for target in linked)
        if path == expected and path.name not in current and not is_linked:
            yield path


def _find_old_work(out_folder: OutFolder, last_steps: list[dict[str, Any]]) -> Iterator[Path]:
    """Yield each folder in `.work` that no unfinished step of the last run needs; none if that is unknown."""
    unfinished = [step for step in last_steps if step["state"] != "done"]
    continued = {str(step.get("work")) for step in unfinished}
    # The fingerprint under which such a step continues is unknown.
    unknown = {name_folder(step["id"]) for step in unfinished if "work" not in step}
    work = out_folder.work
    for path in sorted(work.iterdir()) if last_steps and _is_real_folder(work) else ():
        match = _WORK_NAME.fullmatch(path.name)
        if (
            match is None
            or not _is_real_folder(path)
            or FileLock(path / ".lock").find_holder() is not None
        ):
            continue
        if path.name not in continued and match["step"] not in unknown:
            yield path


def _remove_folder(path: Path) -> None:
    """Remove a folder under a side name, so that its remains are not mistaken for a complete folder."""
    side = path.with_name(build_side_name(path.name))
    try:
        path.rename(side)
        sync(path.parent)  # the new name must be on disk before any file is deleted
        shutil.rmtree(side)
    except OSError as error:
        raise EmbergeError(
            f"{error.filename or path} cannot be removed ({error.strerror}); what was removed before it "
            "is gone, the rest is still there"
        ) from error
