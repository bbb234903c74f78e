"""A folder of media: files of a data set by their paths, and bytes and arrays of rows, written once."""

from __future__ import annotations

import atexit
import functools
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from emberge.contracts import Media, MediaKind, media_hash
from emberge.errors import DataError
from emberge.files import replace_file
from emberge.media.image_files import rgb_image
from emberge.media.media_files import read_media_file, require_media_size
from emberge.media.sound_files import require_clip

__all__ = ["MediaFolder"]

_ENDINGS: dict[MediaKind, str] = {"image": "img", "audio": "snd"}
# Modes of Pillow that PNG keeps as they are.
_PLAIN_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class MediaFolder:
    """Place of a data set's media: relative paths are below `beside`, bytes are kept in `store`.

    Bytes are in files named by their hash, so that equal ones are written once. Without a store they are in
    a temporary folder until the process ends.
    """

    def __init__(self, store: Path | None = None, beside: Path | None = None) -> None:
        self._store = store
        self._beside = beside

    def file(self, kind: MediaKind, path: str) -> tuple[Media, bytes]:
        """Return the reference to a file, and its bytes.

        Raises:
            DataError: when it cannot be read, or its name cannot be a reference.
        """
        place = Path(path) if self._beside is None else self._beside / path
        content = read_media_file(place)
        try:
            return Media(kind, media_hash(content), str(place.absolute())), content
        except ValueError as error:
            raise DataError(str(error)) from error

    def keep(self, kind: MediaKind, content: bytes) -> Media:
        """Return the reference to bytes of a file, which are written if they are new.

        Raises:
            DataError: for more bytes than are read of a file.
        """
        require_media_size(content, f"an {kind}")
        name = media_hash(content)
        place = self._folder() / f"{name}.{_ENDINGS[kind]}"
        if not place.is_file():
            with replace_file(place, durable=False) as side:
                side.write_bytes(content)
        return Media(kind, name, str(place.absolute()))

    def image(self, image: Any) -> Media:
        """Return the reference to a Pillow image, kept as PNG.

        Raises:
            DataError: for samples whose range is not known.
        """
        if image.mode not in _PLAIN_MODES:
            image = rgb_image(image, "an image")
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return self.keep("image", buffer.getvalue())

    def clip(self, samples: Any, rate: int) -> Media:
        """Return the reference to samples [n] or [channels, n], kept as WAV of float32.

        Raises:
            DataError: for samples that are no array of numbers, and a rate or a length beyond the limits
                of a clip.
        """
        import numpy as np
        from scipy.io import wavfile

        try:
            with np.errstate(over="ignore"):  # what is too large is found when the clip is read
                found = np.asarray(samples, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the samples of a clip are no array of numbers: {error}") from error
        if found.ndim not in (1, 2):
            raise DataError(
                f"a clip needs samples [n] or [channels, n], and these are {list(found.shape)}"
            )
        channels, length = found.shape if found.ndim == 2 else (1, len(found))
        require_clip(rate, channels, length, "a clip")
        buffer = io.BytesIO()
        wavfile.write(buffer, int(rate), found.T if found.ndim == 2 else found)
        return self.keep("audio", buffer.getvalue())

    def _folder(self) -> Path:
        if self._store is None:
            return _of_process()
        self._store.mkdir(parents=True, exist_ok=True)
        return self._store


@functools.cache
def _of_process() -> Path:
    """Return a folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="emberge-media-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
