"""Leftovers of runs in an OUT: found, shown with their sizes, and removed.

Old results are results to which no link in OUT leads: options or inputs changed, and the step ran again. Work
is left behind if a recipe was changed before its step was finished. Work that the last run would continue is
kept, and so is work that another process has locked. Only folders that have the name and form of a run's are
removed, and links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge.errors import EmbergeError
from emberge.files import OutInUseError, lock_folder, lock_holder, side_name, sync
from emberge.results.run_folder import (
    ARTIFACT,
    NoRunError,
    OutFolder,
    folder_name,
    measure_folder,
    read_record,
)
from emberge.wording import human_size

# Name of a step's work folder: its id as a folder's name, and the first digits of its fingerprint.
_WORK = re.compile(r"(?P<step>.+)-[0-9a-f]{8}")
# Name of a folder into which the rows of a data file are being written.
_READING = ".reading-*"


@dataclass(frozen=True)
class Leftover:
    """Leftover of runs: its folder, its description, and its size in bytes."""

    path: Path
    what: str
    size: int


@dataclass(frozen=True)
class Leftovers:
    """Leftovers in an OUT that can be removed."""

    out: Path
    removable: tuple[Leftover, ...]

    @property
    def lines(self) -> Sequence[str]:
        """Lines of a table: size, kind and name of each leftover, and the sum."""
        rows = [
            (human_size(one.size), one.what, os.path.relpath(one.path, self.out))
            for one in self.removable
        ]
        rows += [(human_size(sum(one.size for one in self.removable)), "in all", "")]
        table = [f"{size:>8}  {kind:<17}  {name}".rstrip() for size, kind, name in rows]
        return table if self.removable else ["there is nothing to remove"]


def find_leftovers(out: Path) -> Leftovers:
    """Return the leftovers in an OUT, or those of an interrupted merge into `out`, which are next to it.

    Raises:
        NoRunError: if no recipe was run in `out`, and no merge into it was interrupted.
        OutInUseError: if a run works in `out` now.
    """
    places = _find_places(Path(out).resolve())
    for place in places:
        holder = lock_holder(place.lock)
        if holder is not None:
            raise OutInUseError(
                f"{place.path} is in use by {holder}; clean it when that has ended, nothing was removed"
            )
    if not places:
        raise NoRunError(f"{out} holds no run of a recipe")
    return Leftovers(Path(out).resolve(), tuple(_find_all(Path(out).resolve())))


def remove_leftovers(found: Leftovers) -> Leftovers:
    """Remove the leftovers that are still removable, and return the removed leftovers.

    Raises:
        OutInUseError: if a run has started in the folder since `find_leftovers`.
        EmbergeError: if a leftover cannot be removed.
    """
    confirmed = {leftover.path for leftover in found.removable}
    with contextlib.ExitStack() as locks:
        for place in _find_places(found.out):
            locks.enter_context(lock_folder(place.lock))
        removable = tuple(one for one in _find_all(found.out) if one.path in confirmed)
        for leftover in removable:
            _remove_folder(leftover.path)
    return replace(found, removable=removable)


def _find_places(out: Path) -> list[OutFolder]:
    """Return `out` if a recipe was run in it, and the hidden folder in which a merge into `out` worked."""
    run, merge = OutFolder(out), OutFolder(out.parent / f".{out.name}.merging")
    is_run = _is_folder(run.work) or run.status.is_file()
    return [*[run] * is_run, *[merge] * _is_folder(merge.path)]


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to a folder."""
    return path.is_dir() and not path.is_symlink()


def _find_all(out: Path) -> Iterator[Leftover]:
    for place in _find_places(out):
        if place.path != out:
            yield _build_leftover(place.path, "interrupted merge")
            continue
        last = _read_last_run(place)
        for path in _find_old_results(place, last):
            yield _build_leftover(path, "old result")
        for path in _find_old_work(place, last):
            yield _build_leftover(path, "old work")
        for path in sorted(place.store.rglob(_READING)) if _is_folder(place.store) else ():
            yield _build_leftover(path, "unfinished cache")


def _build_leftover(path: Path, what: str) -> Leftover:
    return Leftover(path, what, measure_folder(path))


def _find_old_results(place: OutFolder, last: Sequence[dict[str, Any]]) -> Iterator[Path]:
    linked = [path.resolve() for path in place.path.iterdir() if path.is_symlink()]
    # A run that was killed while it published a result uses the result later, even without a link.
    current = {str(step.get(key)) for step in last for key in ("folder", "work")}
    for path in sorted(filter(_is_folder, place.path.iterdir())):
        record = read_record(path / ARTIFACT)
        own = place.result(str(record.get("step")), str(record.get("fingerprint")))
        is_linked = any(path == target or path in target.parents for target in linked)
        if path == own and path.name not in current and not is_linked:
            yield path


def _find_old_work(place: OutFolder, last: Sequence[dict[str, Any]]) -> Iterator[Path]:
    """Yield each folder in `.work` that no unfinished step of the last run needs; none if that is unknown."""
    unfinished = [step for step in last if step["state"] != "done"]
    continued = {str(step.get("work")) for step in unfinished}
    # The fingerprint under which such a step continues is unknown.
    unknown = {folder_name(step["id"]) for step in unfinished if "work" not in step}
    for path in sorted(place.work.iterdir()) if last and _is_folder(place.work) else ():
        match = _WORK.fullmatch(path.name)
        if match is None or not _is_folder(path) or lock_holder(path / ".lock") is not None:
            continue
        if path.name not in continued and match["step"] not in unknown:
            yield path


def _read_last_run(place: OutFolder) -> list[dict[str, Any]]:
    """Return the entries of the last run's steps; an empty list if they cannot be read."""
    steps = read_record(place.status).get("steps")
    entries = steps if isinstance(steps, list) else []
    return [s for s in entries if isinstance(s, dict) and {"id", "state"} <= s.keys()]


def _remove_folder(path: Path) -> None:
    """Remove a folder under a side name, so that its remains are not mistaken for a complete folder.

    Raises:
        EmbergeError: if the system refuses to remove it.
    """
    side = path.with_name(side_name(path.name))
    try:
        path.rename(side)
        sync(path.parent)  # the new name must be on disk before any file is deleted
        shutil.rmtree(side)
    except OSError as error:
        raise EmbergeError(
            f"{error.filename or path} cannot be removed ({error.strerror}); what was removed before it "
            "is gone, the rest is still there"
        ) from error
