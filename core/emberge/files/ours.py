"""Safe opening of our own files and folders in the folders of runs, never through links.

Files and folders that a run continues, skips or appends to must have been made by this user. Others may be
able to write in a folder, or to create its name before we do (in `/tmp`, on a shared disk, in an archive). By
a link in it, they could make a run empty, extend or replace one of our files, or publish foreign weights as a
result. Therefore:

* An existing folder is used only if it belongs to this user or to root, and not everybody may write to it.
  Then nobody else can add anything to it later; members of its group are trusted.
* `require_tree_ours` checks a folder's whole content once, when work is continued or a result is used. Files
  from another user's archive belong to the user who unpacked it, and the archive may contain links: these are
  refused as well.
* A file is opened without following links, and a file with a second hard link is not written to.
* A file that replaces another one is created under a name that nobody can guess (`emberge.files.atomic`).

Root and the owner of a parent folder can change everything at any time; this module cannot prevent that. Some
file systems (a network's or another system's disk) show another owner, or the same mode for every file.
There, a folder that is created briefly shows the owner and mode that our own files have.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from emberge.errors import EmbergeError
from emberge.wording import printable

_SAFE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would wait for its other end
_FLAGS_BY_MODE = {
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "ab+": os.O_RDWR | os.O_APPEND | os.O_CREAT,
    "rb": os.O_RDONLY,
    "rb+": os.O_RDWR,
    "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
Mode = Literal["ab", "ab+", "rb", "rb+", "xb"]
# Never writable for everybody, whatever the umask.
_FILE, _FOLDER = 0o664, 0o775
_SIDE_NAME = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part", re.DOTALL)
_FOLDER_STATUS_BY_DISK: dict[int, os.stat_result] = {}  # by disk
_LONGEST_NAME = 200  # characters of a name in its side name, which a file system must take too
_ADVICE = "remove it or choose another --out; a copy (`cp -r`) is yours if you trust what is in it"


class NotOursError(EmbergeError):
    """The error for a file or folder that is another user's or a link, and so is not used."""

    exit_code = 2


def open_ours(path: Path, mode: Mode) -> IO[bytes]:
    """Open our own file for reading, appending (`ab`), changing (`rb+`) or creating (`xb`).

    Raises:
        NotOursError: if the path is a link, another user's file or not a regular file, or if a file to be
            written has a second hard link.
        OSError: if the file cannot be opened; FileExistsError for `xb` if the path exists.
    """
    try:
        handle = os.open(path, _FLAGS_BY_MODE[mode] | _SAFE_FLAGS, _FILE)
    except OSError:
        _refuse_link(path)
        if path.is_dir() and mode != "xb":
            _require_regular(path, path.lstat())
        raise
    try:
        status = os.fstat(handle)
        _require_regular(path, status)
        _require_owner(path, status)
        if mode != "rb" and status.st_nlink > 1:
            raise NotOursError(
                f"{printable(path)}: has a second name elsewhere (a hard link), and both would change; "
                "put a copy in its place"
            )
        return os.fdopen(handle, mode.replace("x", "w"))
    except BaseException:
        os.close(handle)
        raise


def claim_folder(folder: Path) -> bool:
    """Create a folder in an existing parent, or require that an existing folder is ours.

    The result is True if it was created; its name is then on the disk only after its parent is synced.

    Raises:
        NotOursError: as `require_ours`.
        OSError: if it cannot be created.
    """
    with suppress(FileExistsError):
        folder.mkdir(_FOLDER)
        return True
    require_ours(folder)
    return False


def require_ours(path: Path) -> None:
    """Require that a file or folder is not a link, belongs to this user, and is not writable by everybody.

    Raises:
        NotOursError: if it is a link, another user's, or writable by everybody.
        OSError: if the path does not exist.
    """
    _refuse_link(path)
    _require_owner(path, path.lstat())


def require_tree_ours(
    folder: Path, *, links: Literal["refuse", "remove", "pass"] = "refuse"
) -> None:
    """Require that a folder and everything below it are ours, and that nothing is a link.

    With `remove` links are removed, such as those that a library made for users' convenience; with `pass`
    they are ignored, for a caller that follows no links.

    Raises:
        NotOursError: if a path is a link or another user's; the message names the first such path.
    """
    require_ours(folder)
    for entry in _walk_entries(folder):
        path = Path(entry.path)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # its process has just given it its name
        if not stat.S_ISLNK(status.st_mode):
            if not stat.S_ISDIR(status.st_mode):
                _require_regular(path, status)
            _require_owner(path, status)
        elif links == "remove":
            path.unlink(missing_ok=True)
        elif links == "refuse":
            _refuse_link(path, status)


def side_name(name: str) -> str:
    """Return a hidden, unpredictable name ending with `.part` for a side file of `name`."""
    return f".{name[:_LONGEST_NAME]}.{secrets.token_hex(8)}.part"


def is_side_name(name: str, of: str | None = None) -> bool:
    """Return whether `name` is a side name: of `of` if given, else of any file or folder."""
    match = _SIDE_NAME.fullmatch(name)
    return match is not None and (of is None or match["name"] == of[:_LONGEST_NAME])


def _walk_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as scan:
            entries = list(scan)
    except FileNotFoundError:
        return
    for entry in entries:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_entries(Path(entry.path))


def _refuse_link(path: Path, status: os.stat_result | None = None) -> None:
    status = status or path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise NotOursError(
            f"{printable(path)}: is a link to {printable(os.readlink(path))}, and no link is followed here; "
            "remove it, and to use another disk choose an --out on it"
        )


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotOursError(f"{printable(path)}: is no regular file; move it elsewhere")


def _require_owner(path: Path, status: os.stat_result) -> None:
    """Require that a path is this user's and not writable by everybody."""
    is_foreign = status.st_uid not in (our_uid(), 0)
    if not (is_foreign or status.st_mode & stat.S_IWOTH):
        return
    sample = _sample_folder(path if stat.S_ISDIR(status.st_mode) else path.parent)
    if is_foreign and (sample is None or sample.st_uid != status.st_uid):
        raise NotOursError(
            f"{printable(path)}: belongs to another user ({_find_user_name(status.st_uid)}); {_ADVICE}"
        )
    if status.st_mode & stat.S_IWOTH and not (sample and sample.st_mode & stat.S_IWOTH):
        raise NotOursError(
            f"{printable(path)}: everybody may write to it; if you trust what is in it, "
            "`chmod -R o-w` it, or choose another --out"
        )


def our_uid() -> int:
    """Return the id of the user who runs this process."""
    return os.geteuid()


def _sample_folder(folder: Path) -> os.stat_result | None:
    """Return the status of a folder created briefly in `folder`; None if none can be created.

    Owner and mode of a new folder are the same everywhere on one disk.
    """
    disk = folder.stat().st_dev
    if disk not in _FOLDER_STATUS_BY_DISK:
        sample = folder / side_name("owner")
        try:
            sample.mkdir(0o700)
            _FOLDER_STATUS_BY_DISK[disk] = sample.lstat()
            sample.rmdir()
        except OSError:
            return None
    return _FOLDER_STATUS_BY_DISK[disk]


def _find_user_name(uid: int) -> str:
    import pwd

    try:
        return printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"number {uid}"
