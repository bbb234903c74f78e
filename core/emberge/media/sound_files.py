"""Audio clips: length and sampling rate, and their samples; WAV by itself, other formats by soundfile."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from emberge.contracts.media import Media
from emberge.errors import DataError
from emberge.media.media_files import content_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Clip", "decoded_clip", "read_clip", "resampled"]


@dataclass(frozen=True, eq=False)
class Clip:
    """Samples float32 [n] of one channel in -1 to 1, and how many there are a second."""

    samples: NDArray[np.float32]
    rate: int

    @property
    def seconds(self) -> float:
        """Length of the clip."""
        return len(self.samples) / self.rate


def read_clip(media: Media) -> Clip:
    """Return the samples of an audio clip.

    Raises:
        DataError: for a file that cannot be read, is empty, or silent.
    """
    return decoded_clip(content_of(media), media.path)


def decoded_clip(content: bytes, where: str) -> Clip:
    """Return the samples of a file's bytes, its channels averaged.

    Raises:
        DataError: for bytes that are no sound, or have no sample, or only zeros.
    """
    import numpy as np

    wave = content[:4] in (b"RIFF", b"RIFX", b"RF64") and content[8:12] == b"WAVE"
    rate, found = _wave(content, where) if wave else _other(content, where)
    samples = found.mean(axis=1, dtype=np.float32) if found.ndim == 2 else found
    if not len(samples):
        raise DataError(f"{where}: the clip is empty; replace or remove it")
    if not np.isfinite(samples).all():
        raise DataError(f"{where}: the clip has samples that are no numbers; replace or remove it")
    if not samples.any():
        raise DataError(f"{where}: the clip is silent; replace or remove it")
    return Clip(np.ascontiguousarray(samples, np.float32), int(rate))


def _wave(content: bytes, where: str) -> tuple[int, NDArray[np.float32]]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            # Chunks beside the samples (titles, markers) are none of ours.
            warnings.simplefilter("ignore", wavfile.WavFileWarning)
            rate, found = wavfile.read(io.BytesIO(content))
    except Exception as error:  # a damaged header makes it fail in many ways
        raise DataError(
            f"{where}: is no WAV file that can be read ({error}); replace or remove it"
        ) from error
    return int(rate), _scaled(found)


def _scaled(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Return samples of any width as float32 in -1 to 1."""
    import numpy as np

    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    if np.issubdtype(samples.dtype, np.integer):
        # 24 bits come in the upper part of 32.
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    return samples.astype(np.float32)


def _other(content: bytes, where: str) -> tuple[int, NDArray[np.float32]]:
    if find_spec("soundfile") is None:
        raise DataError(
            f"{where}: is no WAV file, and other formats need soundfile: pip install 'emberge[audio]'"
        )
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    except (RuntimeError, ValueError, TypeError) as error:
        raise DataError(
            f"{where}: is no sound that soundfile reads ({error}); replace or remove it"
        ) from error
    return int(rate), samples


def resampled(clip: Clip, rate: int) -> Clip:
    """Return the clip at another sampling rate, filtered against aliases (polyphase)."""
    if clip.rate == rate:
        return clip
    import numpy as np
    from scipy.signal import resample_poly

    shared = int(np.gcd(clip.rate, rate))
    samples = resample_poly(clip.samples, rate // shared, clip.rate // shared)
    return Clip(np.ascontiguousarray(samples, np.float32), rate)
