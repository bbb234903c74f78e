"""Atomic files and folders: complete or absent, even after a kill or a power cut.

A file or folder is written under a new side name (`.name.<random>.part`). It is then synced, and gets its
final name by one rename. The writing process locks the side file: a second writer is refused, and a side file
in use is distinguished from one that a killed writer left. A file's data is on the disk after the file is
synced, its name after its folder is synced; if the data was not synced, a power cut may leave a name without
content. `durable=False` omits the syncs if a
loss costs only time: for a file inside a folder that is published as a whole, and for logs and caches whose
readers skip incomplete content. Errors of writing name the path and the remedy.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emberge.errors import CheckpointError, EmbergeError, Problem, UnwrittenError
from emberge.wording import human_size

_RUN_AGAIN = "run again: what is done is kept"
_ADVICE = {
    errno.ENOSPC: f"make room and {_RUN_AGAIN}",
    errno.EDQUOT: f"make room and {_RUN_AGAIN}",
    errno.EFBIG: f"files may not be as large here (`ulimit -f`); allow larger ones and {_RUN_AGAIN}",
    errno.EACCES: "choose another place",
    errno.EPERM: "choose another place",
    errno.EROFS: "choose another place",
}
_WAIT = 0.05  # seconds between two looks at a folder that another process is filling
_SIDE_NAME = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part", re.DOTALL)
_LONGEST_NAME = 200  # characters of a name in its side name, which a file system must take too
# Room for a model's configs and tokenizer, in addition to its weights.
_SIDE_FILES_SIZE = 1 << 20


def side_name(name: str) -> str:
    """Return a hidden, random name ending with `.part` for a side file of `name`."""
    return f".{name[:_LONGEST_NAME]}.{secrets.token_hex(8)}.part"


def is_side_name(name: str, of: str | None = None) -> bool:
    """Return whether `name` is a side name: of `of` if given, else of any file or folder."""
    match = _SIDE_NAME.fullmatch(name)
    return match is not None and (of is None or match["name"] == of[:_LONGEST_NAME])


def sync(path: Path) -> None:
    """Sync a file's data, or a folder's list of entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path, *, skipped: str = "", deep: bool = True) -> None:
    """Sync a folder's whole content to the disk, except its own name, which its parent stores.

    Files whose names end with `skipped` are left out; without `deep`, so is the content of subfolders.
    """
    for directory, _, files in os.walk(folder, topdown=False) if deep else [next(os.walk(folder))]:
        for path in [Path(directory, name) for name in sorted(files)]:
            is_skipped = bool(skipped) and path.name.endswith(skipped)
            if path.is_file() and not path.is_symlink() and not is_skipped:
                sync(path)
        sync(Path(directory))


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync them to the disk; an existing folder is kept."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync(path.parent)


def publish(side: Path, path: Path, *, once: bool = False) -> None:
    """Sync a finished file or folder and move it to `path` by one rename.

    A file or an empty folder at `path` is replaced. With `once` a folder with content stays, as another
    process has published the same result first.
    """
    if side.is_dir() and not side.is_symlink():
        sync_tree(side)
    else:
        sync(side)
    try:
        os.replace(side, path)
    except OSError:
        if not (once and path.is_dir()):
            raise
    sync(path.parent)


@contextmanager
def replace_file(path: Path, *, durable: bool = True, shared: bool = False) -> Iterator[Path]:
    """Yield a side path to write to, which is renamed to `path` unless the block raises an error.

    Side files of killed writers are removed. With `shared` several processes may write the file at once, and
    the version that is finished last is kept.

    Raises:
        CheckpointError: if another process is writing the file, unless it is `shared`.
    """
    side, handle = _create_locked_side(path, _create_file)
    try:
        if not shared:
            _require_one_writer(path, side)
        yield side
        if durable:
            publish(side, path)
        else:
            os.replace(side, path)
    except BaseException:
        side.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def write_text(path: Path, text: str, *, durable: bool = True, shared: bool = False) -> None:
    """Write a text file atomically: readers find the old content or the new."""
    with replace_file(path, durable=durable, shared=shared) as side:
        # A file's name may have bytes that are no UTF-8, and an error may quote it.
        side.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: object, *, durable: bool = True) -> None:
    """Write an indented JSON file atomically: readers find the old content or the new."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link at `target`; an older link is replaced atomically."""
    side = link.with_name(side_name(link.name))
    for left in _find_sides(link):
        _remove_torn(left)
    side.symlink_to(target)
    os.replace(side, link)
    sync(link.parent)


def replace_folder(path: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder under a side name and publish it at `path`, in place of an older folder.

    Raises:
        CheckpointError: if another process is filling it.
    """
    make_folder(path.parent)
    with _create_side_folder(path) as side:
        _require_one_writer(path, side)
        fill(side)
        sync_tree(side)
        if path.exists():
            shutil.rmtree(path)
        publish(side, path)
    return path


def clear_torn(folder: Path, *, deep: bool = False) -> None:
    """Remove side files, folders and links that killed processes left, but none that is in use.

    With `deep`, side files in subfolders are removed too.
    """
    for directory, folders, files in os.walk(folder):
        for name in filter(is_side_name, (*folders, *files)):
            _remove_torn(Path(directory, name))
        folders[:] = [name for name in folders if deep and not is_side_name(name)]


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return the folder, filled atomically by `fill` if it does not exist yet.

    If another process is filling it, its result is waited for, or its end. Two that begin in the same moment
    both fill it, and the work of the one that ends second is discarded.
    """
    while not folder.is_dir() and _is_being_filled(folder):
        time.sleep(_WAIT)
    if folder.is_dir():
        return folder
    make_folder(folder.parent)
    with _create_side_folder(folder) as side:
        fill(side)
        publish(side, folder, once=True)
    return folder


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def _create_side_folder(path: Path) -> Iterator[Path]:
    """Yield a new, locked folder under a side name of `path`; at the end it is removed if it still exists."""
    side, handle = _create_locked_side(path, _create_folder)
    try:
        yield side
    finally:
        shutil.rmtree(side, ignore_errors=True)
        os.close(handle)


def _create_file(side: Path) -> int:
    return os.open(side, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _create_folder(side: Path) -> int:
    side.mkdir()
    return os.open(side, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _create_locked_side(path: Path, create: Callable[[Path], int]) -> tuple[Path, int]:
    """Create a side file or folder of `path` and lock it; return it with its open handle."""
    while True:
        side = path.with_name(side_name(path.name))
        handle = create(side)
        # Before it was locked another writer may have taken it for left over.
        if _lock(handle) and side.exists():
            return side, handle
        os.close(handle)


def _require_one_writer(path: Path, own: Path) -> None:
    """Require that no other process writes `path`, and remove what killed processes left."""
    for side in _find_sides(path):
        if side != own and not _remove_torn(side):
            raise CheckpointError(
                f"{path}: another process is writing it; wait for it, stop it or choose another name"
            )


def _is_being_filled(folder: Path) -> bool:
    """Return whether a process has a side folder of `folder` locked."""
    if not folder.parent.is_dir():
        return False
    for side in _find_sides(folder):
        with suppress(OSError):  # gone, or not readable
            handle = os.open(side, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if not _lock(handle):
                    return True
            finally:
                os.close(handle)
    return False


def _find_sides(path: Path) -> list[Path]:
    with os.scandir(path.parent) as scan:
        return [path.with_name(entry.name) for entry in scan if is_side_name(entry.name, path.name)]


def _remove_torn(side: Path) -> bool:
    """Remove a side file, folder or link unless a process has it locked; return whether it is gone."""
    with suppress(FileNotFoundError):
        if side.is_symlink():
            side.unlink()
            return True
        if stat.S_IFMT(side.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return True  # no file of ours, and it disturbs no run
        try:
            handle = os.open(side, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            return True
        try:
            if not _lock(handle):
                return False
            shutil.rmtree(side, ignore_errors=True) if side.is_dir() else side.unlink()
        finally:
            os.close(handle)
    return True


def _lock(handle: int) -> bool:
    """Lock a side file or folder until it is closed; return False if another process has locked it.

    It also returns True if the file system has no locks, as normally there is only one writer.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


@contextmanager
def writing(place: Path, what: str) -> Iterator[None]:
    """Turn an OSError of the `with` block into an UnwrittenError that names `place`, `what` and the remedy.

    Raises:
        UnwrittenError: if the disk is full or broken, a limit is reached, or rights are missing.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"see to the disk and {_RUN_AGAIN}")
        raise UnwrittenError(
            f"{place}: {what} could not be written ({error.strerror}); {advice}"
        ) from error


def require_space(folder: Path, size: int) -> None:
    """Require `size` free bytes on the disk of `folder`, which need not exist yet.

    Raises:
        EmbergeError: if less is free; the message has the needed and the free space.
    """
    free = _free_space(folder)
    if size > free:
        raise EmbergeError(
            f"{folder}: needs {human_size(size)} of disk, and {human_size(free)} are free; "
            "make room or choose another --out"
        )


def disk_space_problems(size: int, out: Path, part: Path | None) -> Iterator[Problem]:
    """Yield a problem if `size` bytes of weights do not fit at `out`, counting those already in `part`."""
    free = _free_space(out) + (_count_stored_bytes(part) if part is not None else 0)
    if size + _SIDE_FILES_SIZE > free:
        yield Problem(
            f"the result needs {human_size(size)} and the disk has {human_size(free)} free; "
            "make room or choose another place",
            str(out),
        )


def _free_space(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


def _count_stored_bytes(part: Path) -> int:
    """Return the bytes of disk that a folder's partly written weights occupy."""
    return sum(512 * path.stat().st_blocks for path in part.rglob("*.safetensors"))
