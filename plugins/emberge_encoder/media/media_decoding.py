"""Decoding of images to pixels, and of clips to samples."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from emberge import DataError, Media
from emberge.media import read_media
from numpy.typing import NDArray

# Pillow has other decoders that start programs (EPS starts Ghostscript) or have not been reviewed for years.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Tag of EXIF for the orientation of the camera, and the orientations that are a quarter turn.
_ORIENTATION, _SIDEWAYS = 274, range(5, 9)
_MEDIA_REMEDY = "convert it, replace or remove it"


def _open_image(media: Media) -> Any:
    """Return a Pillow image with its header read.

    Raises:
        DataError: if the file has another format, or too many pixels for Pillow.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large sizes and odd metadata
            return Image.open(io.BytesIO(read_media(media)), formats=FORMATS)
    except DataError:
        raise
    except Exception as error:  # a damaged header makes decoders fail in many ways
        raise DataError(
            f"{media.path}: is no {', '.join(FORMATS)} image that can be read ({error}); {_MEDIA_REMEDY}"
        ) from error


def read_image_size(media: Media) -> tuple[int, int]:
    """Return width and height of an image after the rotation in its header, from the header alone.

    Raises:
        DataError: if the file cannot be read as an image.
    """
    from PIL import Image

    image = _open_image(media)
    width, height = map(int, image.size)
    with contextlib.suppress(Exception):  # damaged metadata, which image viewers ignore, too
        # The method of PNG images decodes all pixels first, which may bring more metadata.
        if Image.Image.getexif(image).get(_ORIENTATION) in _SIDEWAYS:
            return height, width
    return width, height


def read_image(media: Media) -> Any:
    """Return an image's first frame as a Pillow image in RGB of 8 bits, rotated upright.

    Samples of 16 bits are divided by 257, so that 65,535 becomes 255.

    Raises:
        DataError: if the file is damaged, or has samples of 32 bits, whose range is not known.
    """
    from PIL import Image, ImageOps

    image = _open_image(media)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            image.load()
            with contextlib.suppress(Exception):  # damaged metadata
                image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
                samples = np.asarray(image).astype(np.uint32)
                image = Image.fromarray(((samples + 128) // 257).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise ValueError("samples of 32 bits, whose range is not known")
            return image.convert("RGB")
    except Exception as error:  # damaged data makes decoders fail in many ways
        raise DataError(f"{media.path}: the image is damaged: {error}; {_MEDIA_REMEDY}") from error


@dataclass(frozen=True, eq=False)
class Clip:
    """An audio clip: mono samples float32 [n] from -1 to 1, and the sampling rate."""

    samples: NDArray[np.float32]
    rate: int


def read_clip(media: Media) -> Clip:
    """Return an audio clip with its channels averaged.

    Raises:
        DataError: if the file is no sound, is empty, or has samples that are not finite.
    """
    content = read_media(media)
    is_wave = content[:4] in (b"RIFF", b"RIFX", b"RF64") and content[8:12] == b"WAVE"
    if not is_wave and find_spec("soundfile") is None:
        raise DataError(
            f"{media.path}: is no WAV file, and other formats need soundfile: pip install 'emberge[audio]'"
        )
    try:
        rate, stored = (_decode_wave if is_wave else _decode_other)(content)
    except Exception as error:  # a damaged header makes decoders fail in many ways
        raise DataError(
            f"{media.path}: is no sound that can be read ({error}); {_MEDIA_REMEDY}"
        ) from error
    scaled = _scale_samples(stored)
    samples = scaled.mean(axis=1, dtype=np.float32) if scaled.ndim == 2 else scaled
    if not len(samples) or not np.isfinite(samples).all():
        raise DataError(
            f"{media.path}: the clip is empty or not of finite numbers; {_MEDIA_REMEDY}"
        )
    return Clip(np.ascontiguousarray(samples, np.float32), int(rate))


def _decode_wave(content: bytes) -> tuple[int, NDArray[Any]]:
    from scipy.io import wavfile

    with warnings.catch_warnings():
        # Warnings are about chunks such as titles and markers, which are not read.
        warnings.simplefilter("ignore", wavfile.WavFileWarning)
        rate, samples = wavfile.read(io.BytesIO(content))
    return int(rate), samples


def _decode_other(content: bytes) -> tuple[int, NDArray[Any]]:
    import soundfile

    with soundfile.SoundFile(io.BytesIO(content)) as file:
        return int(file.samplerate), file.read(dtype="float32")


def _scale_samples(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Convert samples of any width to float32 from -1 to 1."""
    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    if np.issubdtype(samples.dtype, np.integer):
        # 24 bits come in the upper part of 32.
        return samples.astype(np.float32) / np.float32(-float(np.iinfo(samples.dtype).min))
    with np.errstate(over="ignore"):  # too large numbers become infinite, which is refused
        return samples.astype(np.float32, copy=False)


def resample_clip(clip: Clip, rate: int) -> Clip:
    """Return the clip at another sampling rate, filtered against aliases (polyphase)."""
    if clip.rate == rate:
        return clip
    from scipy.signal import resample_poly

    common_divisor = int(np.gcd(clip.rate, rate))
    samples = resample_poly(clip.samples, rate // common_divisor, clip.rate // common_divisor)
    return Clip(np.ascontiguousarray(samples, np.float32), rate)
