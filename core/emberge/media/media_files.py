"""Reading of media files, checked against the hash in their reference."""

from __future__ import annotations

import hashlib
from pathlib import Path

from emberge.contracts import Media
from emberge.errors import DataError
from emberge.files import UnsoundFileError, read_regular

MEDIA_BYTES = 256 << 20
"""Largest size of the file of an image or a clip, in bytes."""


def read_content(media: Media) -> bytes:
    """Return the bytes of a medium's file.

    Raises:
        DataError: if the file cannot be read, or has changed since its data was read.
    """
    content = read_media_file(Path(media.path))
    if media_hash(content) != media.hash:
        raise DataError(
            f"{media.path}: has changed since its data was read; run again to read it as it is now"
        )
    return content


def read_media_file(path: Path) -> bytes:
    """Return the bytes of a regular file of at most MEDIA_BYTES.

    Raises:
        DataError: if the path is a FIFO, a device or a folder, or the file is larger or cannot be read.
    """
    try:
        return read_regular(path, limit=MEDIA_BYTES)
    except UnsoundFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise DataError(f"{path}: is no path of a file ({error})") from error


def media_hash(content: bytes | memoryview) -> str:
    """Return the hash of a medium's bytes: 128 bits of BLAKE2b in hex."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
