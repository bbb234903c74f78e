"""Reading of image files: size from the header, and pixels.

Only `FORMATS` are decoded. Pillow has other decoders that start programs (EPS starts Ghostscript) or have not
been reviewed for years.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

from emberge.contracts import Media
from emberge.errors import DataError
from emberge.media.media_files import read_content

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# Tag of EXIF for the orientation of the camera.
_ORIENTATION = 274
# Orientations that are a quarter turn.
_SIDEWAYS = range(5, 9)
_WIDTH, _HEIGHT = 256, 257  # tags of TIFF


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
            f"{where}: is no PNG, JPEG, WebP, GIF, BMP or TIFF image that can be read; convert it to one of "
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
    width, height = image.size
    if image.format == "TIFF":  # some releases of Pillow give the size after the turn
        width, height = image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
    sideways = _read_orientation(image) in _SIDEWAYS
    return (int(height), int(width)) if sideways else (int(width), int(height))


def _read_orientation(image: Any) -> int:
    """Return the orientation in an image's header, from 1 to 8; 1 if it cannot be read."""
    from PIL import Image

    try:
        # The method of PNG images decodes all pixels first, which may bring more metadata.
        orientation = Image.Image.getexif(image).get(_ORIENTATION)
    except Exception:  # damaged metadata, which image viewers ignore, too
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


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
    image = open_image(content, where)
    turn = _read_orientation(image)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            image.load()
            if image.format == "TIFF":  # Pillow may have turned it
                turn = _read_orientation(image)
            return _rotate_upright(rgb_image(image, where), turn)
    except DataError:
        raise
    except Exception as error:  # damaged data makes decoders fail in many turns
        raise DataError(f"{where}: the image is damaged ({error}); replace or remove it") from error


def _rotate_upright(image: Any, orientation: int) -> Any:
    """Return the image rotated upright, given its EXIF orientation."""
    from PIL.Image import Transpose

    transpose_by_orientation = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return (
        image.transpose(transpose_by_orientation[orientation])
        if orientation in transpose_by_orientation
        else image
    )


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
