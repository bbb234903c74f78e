"""Free space of a disk, and errors of writing that name the place and the remedy."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emberge.errors import EmbergeError, Problem, UnwrittenError
from emberge.wording import human_size

_AGAIN = "run again: what is done is kept"
_ADVICE = {
    errno.ENOSPC: f"make room and {_AGAIN}",
    errno.EDQUOT: f"make room and {_AGAIN}",
    errno.EFBIG: f"files may not be as large here (`ulimit -f`); allow larger ones and {_AGAIN}",
    errno.EACCES: "choose another place",
    errno.EPERM: "choose another place",
    errno.EROFS: "choose another place",
}
# Configs and tokenizer beside the weights.
_BESIDE = 1 << 20


@contextmanager
def writing(place: Path, what: str) -> Iterator[None]:
    """Turn an OSError of the block into an UnwrittenError that names `place`, `what` and the remedy.

    Raises:
        UnwrittenError: for a full disk, a limit, missing rights, or a broken disk.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"see to the disk and {_AGAIN}")
        raise UnwrittenError(
            f"{place}: {what} could not be written ({error.strerror}); {advice}"
        ) from error


def require_space(folder: Path, size: int) -> None:
    """Make sure that the disk of `folder`, which need not exist yet, has room for `size` bytes.

    Raises:
        EmbergeError: with what is needed and what is free.
    """
    free = _free(folder)
    if size > free:
        raise EmbergeError(
            f"{folder}: needs {human_size(size)} of disk, and {human_size(free)} are free; "
            "make room or choose another --out"
        )


def disk_space_problems(size: int, out: Path, part: Path | None) -> Iterator[Problem]:
    """Yield a problem if `size` bytes of weights do not fit at `out`; `part` has some of them already."""
    free = _free(out) + (_written(part) if part is not None else 0)
    if size + _BESIDE > free:
        yield Problem(
            f"the result needs {human_size(size)} and the disk has {human_size(free)} free; "
            "make room or choose another place",
            str(out),
        )


def _free(folder: Path) -> int:
    place = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(place).free


def _written(part: Path) -> int:
    """Return the bytes of disk that a folder's weights take; files have full length from the start."""
    return sum(512 * path.stat().st_blocks for path in part.rglob("*.safetensors"))
