"""Reading of audio files; all formats but WAV need soundfile."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real
from typing import TYPE_CHECKING, Any

from emberge.contracts import Media
from emberge.errors import DataError
from emberge.media.media_files import read_content

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


RATES = (1_000, 384_000)
"""Lowest and highest sampling rate, in samples a second."""
LOUDEST = 16.0
"""Largest sample of a file of floats, where 1 is full scale; larger ones have another scale."""


@dataclass(frozen=True, eq=False)
class Clip:
    """An audio clip: mono samples float32 [n] from -1 to 1, and the sampling rate."""

    samples: NDArray[np.float32]
    rate: int

    @property
    def seconds(self) -> float:
        """The length of the clip in seconds."""
        return len(self.samples) / self.rate


def read_clip(media: Media) -> Clip:
    """Read an audio clip from a file.

    Raises:
        DataError: if the file cannot be read, is empty or is silent.
    """
    return decode_clip(read_content(media), media.path)


def decode_clip(content: bytes, where: str) -> Clip:
    """Decode an audio file's bytes to a clip, with its channels averaged.

    Raises:
        DataError: if the bytes are not audio, or have no samples, or only zeros.
    """
    import numpy as np

    wave = content[:4] in (b"RIFF", b"RIFX", b"RF64") and content[8:12] == b"WAVE"
    rate, stored = _decode_wave(content, where) if wave else _decode_other(content, where)
    require_rate(rate, where)
    scaled = _scale_samples(stored)
    samples = scaled.mean(axis=1, dtype=np.float32) if scaled.ndim == 2 else scaled
    if not len(samples):
        raise DataError(f"{where}: the clip is empty; replace or remove it")
    if not np.isfinite(samples).all():
        raise DataError(f"{where}: the clip has samples that are no numbers; replace or remove it")
    if np.abs(samples).max() > LOUDEST:
        raise DataError(
            f"{where}: the clip's samples go up to {np.abs(samples).max():g}, and floats are from -1 to 1; "
            "scale them"
        )
    if not samples.any():
        raise DataError(f"{where}: the clip is silent; replace or remove it")
    return Clip(np.ascontiguousarray(samples, np.float32), int(rate))


def require_rate(rate: Any, where: str) -> None:
    """Refuse a clip whose sampling rate is no number, or beyond the limits.

    Raises:
        DataError: if it is; the message has the limits.
    """
    if not isinstance(rate, Real) or not RATES[0] <= float(rate) <= RATES[1]:
        raise DataError(
            f"{where}: a sampling rate of {rate} a second, which is a number from {RATES[0]:,} to "
            f"{RATES[1]:,}; correct it, replace or remove the clip"
        )


def _decode_wave(content: bytes, where: str) -> tuple[int, NDArray[Any]]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            # Warnings are about chunks such as titles and markers, which are not read.
            warnings.simplefilter("ignore", wavfile.WavFileWarning)
            rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # a damaged header makes it fail in many ways
        raise DataError(
            f"{where}: is no WAV file that can be read ({error}); replace or remove it"
        ) from error
    return int(rate), samples


def _scale_samples(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Convert samples of any width to float32 from -1 to 1."""
    import numpy as np

    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    if np.issubdtype(samples.dtype, np.integer):
        # 24 bits come in the upper part of 32.
        return samples.astype(np.float32) / np.float32(-float(np.iinfo(samples.dtype).min))
    with np.errstate(over="ignore"):  # too large numbers become infinite, which is refused
        return samples.astype(np.float32, copy=False)


def _decode_other(content: bytes, where: str) -> tuple[int, NDArray[Any]]:
    if find_spec("soundfile") is None:
        raise DataError(
            f"{where}: is no WAV file, and other formats need soundfile: pip install 'emberge[audio]'"
        )
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, samples = file.samplerate, file.read(dtype="float32")
    except (RuntimeError, ValueError, TypeError) as error:
        raise DataError(
            f"{where}: is no sound that soundfile reads ({error}); convert it, replace or remove it"
        ) from error
    return int(rate), samples


def resample_clip(clip: Clip, rate: int) -> Clip:
    """Return the clip at another sampling rate, filtered against aliases (polyphase)."""
    if clip.rate == rate:
        return clip
    import numpy as np
    from scipy.signal import resample_poly

    common_divisor = int(np.gcd(clip.rate, rate))
    samples = resample_poly(clip.samples, rate // common_divisor, clip.rate // common_divisor)
    return Clip(np.ascontiguousarray(samples, np.float32), rate)
