"""The folder of a data set's media: references to files, and new files for bytes and arrays."""

from __future__ import annotations

import atexit
import functools
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from emberge.contracts import Media, MediaKind
from emberge.errors import DataError
from emberge.files import replace_file
from emberge.media.image_files import rgb_image
from emberge.media.media_files import media_hash, read_media_file
from emberge.media.sound_files import require_rate

_ENDINGS: dict[MediaKind, str] = {"image": "img", "audio": "snd"}
# Modes of Pillow that PNG stores without loss.
_PLAIN_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class MediaFolder:
    """A folder of media: relative paths start at `beside`, and new files are written to `store`.

    Files made from bytes are named by their hash, so that equal files are written once. Without a store, they
    are kept in a temporary folder until the process ends.
    """

    def __init__(self, store: Path | None = None, beside: Path | None = None) -> None:
        self._store = store
        self._beside = beside

    def add_file(self, kind: MediaKind, path: str) -> tuple[Media, bytes]:
        """Return the reference to a file, and its bytes.

        Raises:
            DataError: if the file cannot be read, or its name cannot be a reference.
        """
        source = Path(path) if self._beside is None else self._beside / path
        content = read_media_file(source)
        try:
            return Media(kind, media_hash(content), str(source.absolute())), content
        except ValueError as error:
            raise DataError(str(error)) from error

    def add_bytes(self, kind: MediaKind, content: bytes) -> Media:
        """Write a media file's bytes, unless they were written before, and return the reference."""
        name = media_hash(content)
        target = self._open_folder() / f"{name}.{_ENDINGS[kind]}"
        if not target.is_file():
            with replace_file(target, durable=False) as side:
                side.write_bytes(content)
        return Media(kind, name, str(target.absolute()))

    def add_image(self, image: Any) -> Media:
        """Write a Pillow image as PNG, and return the reference to it.

        Raises:
            DataError: if the range of the samples is unknown.
        """
        if image.mode not in _PLAIN_MODES:
            image = rgb_image(image, "an image")
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return self.add_bytes("image", buffer.getvalue())

    def add_clip(self, samples: Any, rate: int) -> Media:
        """Write samples [n] or [channels, n] as WAV of float32, and return the reference to them.

        Raises:
            DataError: if the samples are not an array of numbers, or the rate is beyond the limits.
        """
        import numpy as np
        from scipy.io import wavfile

        try:
            with np.errstate(over="ignore"):  # too large numbers are refused when the clip is read
                values = np.asarray(samples, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the samples of a clip are no array of numbers: {error}") from error
        if values.ndim not in (1, 2):
            raise DataError(
                f"a clip needs samples [n] or [channels, n], and these are {list(values.shape)}"
            )
        require_rate(rate, "a clip")
        buffer = io.BytesIO()
        wavfile.write(buffer, int(rate), values.T if values.ndim == 2 else values)
        return self.add_bytes("audio", buffer.getvalue())

    def _open_folder(self) -> Path:
        if self._store is None:
            return _create_process_folder()
        self._store.mkdir(parents=True, exist_ok=True)
        return self._store


@functools.cache
def _create_process_folder() -> Path:
    """Create the process's temporary folder, which is removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="emberge-media-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
