"""Reading of the files that media refer to, each seen to be the one that was referred to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from emberge.contracts.media import Media, media_hash
from emberge.errors import DataError

__all__ = ["content_of", "require_package"]


def content_of(media: Media) -> bytes:
    """Return the bytes of a medium's file.

    Raises:
        DataError: for a file that cannot be read, or has changed since its data was read.
    """
    try:
        content = Path(media.path).read_bytes()
    except OSError as error:
        raise DataError(f"{media.path}: cannot be read: {error.strerror}") from error
    if media_hash(content) != media.hash:
        raise DataError(
            f"{media.path}: has changed since its data was read; run again, and it is read anew"
        )
    return content


def require_package(module: str, package: str, what: str) -> None:
    """Make sure that a module can be imported.

    Raises:
        DataError: with the command that installs its package.
    """
    if find_spec(module) is None:
        raise DataError(f"{what} needs the package {package}: pip install '{package}'")
