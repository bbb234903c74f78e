"""Reading of image files: size from the header, and pixels.

Only `FORMATS` are decoded. Pillow has other decoders that start programs (EPS starts Ghostscript) or have not
been reviewed for years.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

from emberge.contracts import Media
from emberge.errors import DataError
from emberge.media.media_files import read_content

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Tag of EXIF for the orientation of the camera.
_ORIENTATION = 274
# Orientations that are a quarter turn.
_SIDEWAYS = range(5, 9)


def open_image(content: bytes, where: str) -> Any:
    """Open a Pillow image and read its header, but not its pixels.

    Raises:
        DataError: if the bytes have another format, or too many pixels for Pillow.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large sizes and odd metadata
            return Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{where}: an image of too many pixels ({error}); make it smaller"
        ) from error
    except Exception as error:  # a damaged header makes decoders fail in many turns
        raise DataError(
            f"{where}: is no PNG, JPEG, WebP, GIF or BMP image that can be read; convert it to one of "
            "them, replace or remove it"
        ) from error


def image_size(media: Media) -> tuple[int, int]:
    """Return width and height of an upright image, from its header.

    Raises:
        DataError: if the file cannot be read as an image.
    """
    return upright_size(open_image(read_content(media), media.path))


def upright_size(image: Any) -> tuple[int, int]:
    """Return width and height of a Pillow image after the rotation in its header."""
    from PIL import Image

    width, height = map(int, image.size)
    with contextlib.suppress(Exception):  # damaged metadata, which image viewers ignore, too
        # The method of PNG images decodes all pixels first, which may bring more metadata.
        if Image.Image.getexif(image).get(_ORIENTATION) in _SIDEWAYS:
            return height, width
    return width, height


def read_image(media: Media) -> Any:
    """Return an image's pixels as a Pillow image in RGB.

    Raises:
        DataError: if the file is damaged.
    """
    return decode_image(read_content(media), media.path)


def decode_image(content: bytes, where: str) -> Any:
    """Decode an image's bytes to a Pillow image in RGB, rotated upright.

    Of an image with several frames, the first one is returned.

    Raises:
        DataError: if the bytes are damaged, or the range of the samples is unknown.
    """
    from PIL import ImageOps

    image = open_image(content, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            image.load()
            with contextlib.suppress(
                Exception
            ):  # damaged metadata, which image viewers ignore, too
                image = ImageOps.exif_transpose(image)
            return rgb_image(image, where)
    except DataError:
        raise
    except Exception as error:  # damaged data makes decoders fail in many turns
        raise DataError(f"{where}: the image is damaged ({error}); replace or remove it") from error


def rgb_image(image: Any, where: str) -> Any:
    """Convert a Pillow image to RGB of 8 bits; transparent pixels keep their colour.

    Samples of 16 bits are divided by 257, so that 65,535 becomes 255.

    Raises:
        DataError: if samples have 32 bits, as files do not state their range.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = _convert_to_8_bits(image)
    if image.mode in ("I", "F"):
        raise DataError(
            f"{where}: the image has samples of 32 bits, whose range is not known; save it with 8 "
            "or 16 bits"
        )
    return image.convert("RGB")


def _convert_to_8_bits(image: Any) -> Any:
    """Convert an image from 16-bit to 8-bit samples, rounded to the nearest."""
    import numpy as np
    from PIL import Image

    samples = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((samples + 128) // 257).astype(np.uint8))
