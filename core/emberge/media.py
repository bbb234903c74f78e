"""Files of images and clips: references by content, and new files for bytes, images and arrays."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from emberge.contracts import Media, MediaKind
from emberge.errors import DataError, UnsoundFileError
from emberge.files import read_regular, replace_file

MEDIA_BYTES = 256 << 20
"""Largest size of the file of an image or a clip, in bytes."""
_ENDINGS: dict[MediaKind, str] = {"image": "img", "audio": "snd"}
# Modes of Pillow that PNG stores without loss.
_PLAIN_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def read_media(media: Media) -> bytes:
    """Return the bytes of a medium's file.

    Raises:
        DataError: if the file cannot be read, or has changed since its data was read.
    """
    content = _read_file(Path(media.path))
    if _hash_content(content) != media.hash:
        raise DataError(
            f"{media.path}: has changed since its data was read; run again to read it as it is now"
        )
    return content


def _read_file(path: Path) -> bytes:
    """Return the bytes of a regular file of at most MEDIA_BYTES."""
    try:
        return read_regular(path, limit=MEDIA_BYTES)
    except UnsoundFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise DataError(f"{path}: is no path of a file ({error})") from error


def _hash_content(content: bytes) -> str:
    """Return the hash of a medium's bytes: 128 bits of BLAKE2b in hex."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class MediaFolder:
    """A folder of media: relative paths start at `read_from`, and new files are written to `write_to`.

    Files made from bytes are named by their hash, so that equal files are written once. Without `write_to`,
    they are kept in a temporary folder until the process ends.
    """

    def __init__(self, write_to: Path | None = None, read_from: Path | None = None) -> None:
        self._write_to, self._read_from = write_to, read_from

    def read_file(self, path: str) -> tuple[Path, bytes]:
        """Return the absolute path and the bytes of a file.

        Raises:
            DataError: if the file cannot be read.
        """
        source = Path(path) if self._read_from is None else self._read_from / path
        return source.absolute(), _read_file(source)

    def add_file(self, kind: MediaKind, path: str) -> Media:
        """Return the reference to a file.

        Raises:
            DataError: if the file cannot be read, or its name cannot be a reference.
        """
        source, content = self.read_file(path)
        try:
            return Media(kind, _hash_content(content), str(source))
        except ValueError as error:
            raise DataError(str(error)) from error

    def add_bytes(self, kind: MediaKind, content: bytes) -> Media:
        """Write a media file's bytes, unless they were written before, and return the reference."""
        name = _hash_content(content)
        folder = self._write_to or _create_process_folder()
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{name}.{_ENDINGS[kind]}"
        if not target.is_file():
            with replace_file(target, durable=False) as side:
                side.write_bytes(content)
        return Media(kind, name, str(target.absolute()))

    def add_image(self, image: Any) -> Media:
        """Write a Pillow image as PNG, and return the reference to it."""
        buffer = io.BytesIO()
        if image.mode not in _PLAIN_MODES:
            is_16_bit = image.mode.startswith(
                "I"
            )  # of either byte order; Pillow converts by way of "I"
            image = image.convert("I").convert("I;16") if is_16_bit else image.convert("RGB")
        image.save(buffer, "PNG", compress_level=1)
        return self.add_bytes("image", buffer.getvalue())

    def add_clip(self, samples: Any, rate: int) -> Media:
        """Write samples [n] or [channels, n] as WAV of float32, and return the reference to them."""
        import numpy as np
        from scipy.io import wavfile

        buffer = io.BytesIO()
        wavfile.write(buffer, int(rate), np.asarray(samples, np.float32).T)
        return self.add_bytes("audio", buffer.getvalue())


@functools.cache
def _create_process_folder() -> Path:
    """Create the process's temporary folder, which is removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="emberge-media-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
