"""Leftovers of runs in an OUT: found, shown with their sizes, and removed.

Old results are results to which no link in OUT leads: options or inputs changed, and the step ran again. Work
is left behind if a recipe was changed before its step was finished. Work that the last run would continue is
kept, and so are files that another process has locked. Only files and folders that have the name and form of
a run's are removed. Links are not followed, and only half-written links are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError, EmbergeError
from emberge.files import (
    OutInUseError,
    is_side_name,
    lock_folder,
    lock_holder,
    read_json,
    sync,
)
from emberge.results.run_folder import ARTIFACT, NoRunError, OutFolder, folder_name
from emberge.wording import human_size

# Name of a result's folder: the step's id as a folder's name, and the first eight digits of its
# fingerprint.
_RESULT = re.compile(r"(?P<step>.+)-(?P<fingerprint>[0-9a-f]{8})")
# Name of a folder while `remove_leftovers` removes it, so that its remains are not mistaken for a
# complete folder.
_REMOVAL_PREFIX = ".removed-"
# Name of a folder into which the rows of a data file are being written.
_READING_PREFIX = ".reading-"


@dataclass(frozen=True)
class Leftover:
    """Leftover of runs: its name in OUT, its description, its paths, and their size in bytes."""

    name: str
    what: str
    paths: tuple[Path, ...]
    size: int


@dataclass(frozen=True)
class Leftovers:
    """Leftovers in an OUT: removable files and folders, and unfinished work, which is kept."""

    out: Path
    removable: tuple[Leftover, ...]
    kept: tuple[Leftover, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that are freed if the leftovers are removed."""
        return sum(leftover.size for leftover in self.removable)

    @property
    def lines(self) -> Sequence[str]:
        """Lines of a table: size, kind and name of each removable leftover, then the work that is kept."""
        rows = [
            (human_size(leftover.size), leftover.what, leftover.name) for leftover in self.removable
        ]
        if len(rows) > 1:
            rows.append((human_size(self.size), "in all", ""))
        sizes, whats = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
        table = [f"{size:>{sizes}}  {kind:<{whats}}  {name}".rstrip() for size, kind, name in rows]
        kept_lines = [
            f"kept: {leftover.name}, {human_size(leftover.size)}: {leftover.what}"
            for leftover in self.kept
        ]
        return [*(table or ["there is nothing to remove"]), *kept_lines]

    @property
    def summary(self) -> str:
        """Number and size of the removable leftovers, in words."""
        count = len(self.removable)
        return f"{count} {'entry' if count == 1 else 'entries'}, {human_size(self.size)}"


def find_leftovers(out: Path) -> Leftovers:
    """Return the leftovers in an OUT, or those of an interrupted merge into `out`, which are next to it.

    Raises:
        NoRunError: if no recipe was run in `out`, and no merge into it was interrupted.
        OutInUseError: if a run works in `out` now.
    """
    out = Path(out).resolve()
    out_folder = OutFolder(out)
    merge_work = _merge_work_folder(out)
    for path in (out_folder.lock, merge_work / ".lock"):
        holder = lock_holder(path)
        if holder is not None:
            raise OutInUseError(
                f"{path.parent} is in use by {holder}; clean it when that has ended, nothing was removed"
            )
    if not (_is_run(out_folder) or any(_find_interrupted_merge(out))):
        raise NoRunError(f"{out} holds no run of a recipe")
    return _find_all(out)


def remove_leftovers(found: Leftovers) -> Leftovers:
    """Remove the leftovers that are still removable, and return the removed leftovers.

    Raises:
        OutInUseError: if a run has started in the folder since `find_leftovers`.
        EmbergeError: if a leftover cannot be removed.
    """
    confirmed_paths = {leftover.paths for leftover in found.removable}
    with contextlib.ExitStack() as locks:
        out_folder, merge_work = OutFolder(found.out), _merge_work_folder(found.out)
        if _is_run(out_folder):
            locks.enter_context(lock_folder(out_folder.lock))
        if _is_folder(merge_work):
            locks.enter_context(lock_folder(merge_work / ".lock"))
        still_removable = _find_all(found.out).removable
        removed_leftovers = tuple(
            leftover for leftover in still_removable if leftover.paths in confirmed_paths
        )
        for leftover in removed_leftovers:
            for path in leftover.paths:
                _remove_path(path)
    return Leftovers(found.out, removed_leftovers)


def _merge_work_folder(out: Path) -> Path:
    """Return the hidden folder in which `emberge merge --out OUT` works."""
    return out.parent / f".{out.name}.merging"


def _find_interrupted_merge(out: Path) -> Iterator[Path]:
    """Yield the existing work folder of a merge, and the remains of one whose removal was interrupted."""
    merge_work = _merge_work_folder(out)
    for path in (merge_work, merge_work.with_name(_build_removal_name(merge_work))):
        if _is_folder(path):
            yield path


def _is_run(out_folder: OutFolder) -> bool:
    return _is_folder(out_folder.work) or out_folder.status.is_file()


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to a folder."""
    return path.is_dir() and not path.is_symlink()


def _find_all(out: Path) -> Leftovers:
    out_folder = OutFolder(out)
    last = _read_last_run(out_folder)
    removable: list[Leftover] = []
    kept: list[Leftover] = []
    if _is_run(out_folder):
        removable += _find_old_results(out_folder, last)
        kept += _find_links(out_folder)
        for leftover, needed in _find_work(out_folder, last):
            (kept if needed else removable).append(leftover)
        if not any(_is_locked(path) for leftover in kept for path in leftover.paths):
            removable += _find_unfinished_caches(out_folder)
    removable += [
        _build_leftover(p, "interrupted merge", p.name) for p in _find_interrupted_merge(out)
    ]
    return Leftovers(out, tuple(removable), tuple(kept))


# ── results ─────────────────────────────────────────────────────────────────────────────────────


def _find_old_results(out_folder: OutFolder, last: Sequence[dict[str, Any]]) -> Iterator[Leftover]:
    linked = {path.resolve() for path in out_folder.path.iterdir() if path.is_symlink()}
    # A run that was killed while it published a result uses the result later, even without a link.
    current = {str(step.get(key)) for step in last for key in ("folder", "work")}
    steps = {folder_name(step["id"]) for step in last}
    links = [path for path in out_folder.path.iterdir() if path.is_symlink()]
    steps |= {path.name for path in links if (path / ARTIFACT).is_file()}
    for path in sorted(out_folder.path.iterdir()):
        if not _is_folder(path) or path.name in current:
            continue
        target_path = path.resolve()
        if any(target == target_path or target_path in target.parents for target in linked):
            continue
        kind = _name_kind_of_result(path, steps)
        if kind is not None:
            yield _build_leftover(path, kind, path.name)


def _name_kind_of_result(path: Path, steps: Iterable[str]) -> str | None:
    """Return a folder's kind as the table names it; None if no run made the folder."""
    if path.name.startswith(_REMOVAL_PREFIX):
        return "half removed"
    result_match = _RESULT.fullmatch(path.name)
    if result_match is None:
        return None
    record = _read_json(path / ARTIFACT)
    step, fingerprint = str(record.get("step")), str(record.get("fingerprint"))
    if path.name == f"{folder_name(step)}-{fingerprint[:8]}":
        return "old result"
    return "partial result" if not record and result_match["step"] in steps else None


def _find_links(out_folder: OutFolder) -> Iterator[Leftover]:
    """Yield OUT's folders that are links, which no run makes; the links are not followed."""
    for path in (out_folder.work, out_folder.store):
        if path.is_symlink():
            yield _build_leftover(path, f"a link to {path.resolve()}, not entered", path.name)


# ── work and caches ─────────────────────────────────────────────────────────────────────────────


def _find_work(
    out_folder: OutFolder, last: Sequence[dict[str, Any]]
) -> Iterator[tuple[Leftover, bool]]:
    """Yield each leftover in `.work`, and whether an unfinished step still needs it."""
    continued_work = {str(step.get("work")) for step in last if step["state"] != "done"}
    # The fingerprint under which such a step continues is unknown.
    unknown_steps = {folder_name(s["id"]) for s in last if s["state"] != "done" and "work" not in s}
    for path in sorted(out_folder.work.iterdir()) if _is_folder(out_folder.work) else ():
        result_match = _RESULT.fullmatch(path.name)
        name = f"{out_folder.work.name}/{path.name}"
        if not _is_folder(path) or not (result_match or path.name.startswith(_REMOVAL_PREFIX)):
            yield _build_leftover(path, "no run made it", name), True
        elif _is_locked(path):
            yield _build_leftover(path, "a process works there", name), True
        elif not last:
            yield _build_leftover(path, f"{out_folder.status.name} cannot be read", name), True
        elif path.name in continued_work or (
            result_match is not None and result_match["step"] in unknown_steps
        ):
            yield _build_leftover(path, "the next run goes on from it", name), True
        else:
            yield _build_leftover(path, "old work", name), False


def _find_unfinished_caches(out_folder: OutFolder) -> Iterator[Leftover]:
    """Yield one leftover of all files that caches were still writing when a run was killed."""
    paths = (
        tuple(sorted(_find_unfinished_files(out_folder.store)))
        if _is_folder(out_folder.store)
        else ()
    )
    if paths:
        files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
        yield _build_leftover_group(
            paths, "unfinished caches", f"{out_folder.store.name} ({files})"
        )


def _find_unfinished_files(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        remaining_names = [name for name in (*folders, *files) if _is_unfinished(name)]
        yield from (Path(where, name) for name in remaining_names)
        folders[:] = [name for name in folders if name not in remaining_names]


def _is_unfinished(name: str) -> bool:
    return is_side_name(name) or name.startswith(_READING_PREFIX)


def _is_locked(path: Path) -> bool:
    return lock_holder(path / ".lock") is not None if _is_folder(path) else False


def _read_last_run(out_folder: OutFolder) -> list[dict[str, Any]]:
    """Return the entries of the last run's steps; an empty list if they cannot be read."""
    steps = _read_json(out_folder.status).get("steps")
    entries = steps if isinstance(steps, list) else []
    return [s for s in entries if isinstance(s, dict) and {"id", "state"} <= s.keys()]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except (OSError, ValueError, CheckpointError):
        return {}
    return record if isinstance(record, dict) else {}


# ── sizes, and removing ─────────────────────────────────────────────────────────────────────────


def _build_leftover(path: Path, what: str, name: str) -> Leftover:
    return _build_leftover_group((path,), what, name)


def _build_leftover_group(paths: tuple[Path, ...], what: str, name: str) -> Leftover:
    return Leftover(name, what, paths, _count_freed_bytes(paths))


def _count_freed_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that are freed by removing the paths; a file with a hard link elsewhere frees none."""
    names: dict[tuple[int, int], int] = {}
    freed = 0
    for path in (file for root in paths for file in _list_files(root)):
        status = path.lstat()
        file = status.st_dev, status.st_ino
        names[file] = names.get(file, 0) + 1
        freed += status.st_size if names[file] == status.st_nlink else 0
    return freed


def _list_files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for where, _, names in os.walk(path):
        yield from (Path(where, name) for name in names)


def _remove_path(path: Path) -> None:
    """Remove a file or a folder; a folder is renamed first, so that its remains are recognised.

    Raises:
        EmbergeError: if the system refuses to remove it.
    """
    try:
        if not _is_folder(path):
            path.unlink()
            return
        removal_path = path.with_name(_build_removal_name(path))
        if removal_path != path:
            if removal_path.is_dir():  # the remains of an earlier removal
                shutil.rmtree(removal_path)
            path.rename(removal_path)
            sync(path.parent)  # the new name must be on disk before any file is deleted
        shutil.rmtree(removal_path)
    except OSError as error:
        raise EmbergeError(
            f"{error.filename or path} cannot be removed ({error.strerror}); what was removed before it "
            "is gone, the rest is still there"
        ) from error


def _build_removal_name(path: Path) -> str:
    """Return the name of a folder while it is removed."""
    return (
        path.name
        if path.name.startswith(_REMOVAL_PREFIX)
        else f"{_REMOVAL_PREFIX}{path.name.lstrip('.')}"
    )
