"""Images: their size from the header, and their pixels.

Only the formats of `_BEGINNINGS` reach a decoder, and each only that of its own format: Pillow has others,
which start programs (EPS starts Ghostscript) or which nobody has looked at for years.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from typing import Any

from emberge.contracts import Media
from emberge.errors import DataError
from emberge.media.media_files import content_of, require_package
from emberge.wording import printable

__all__ = [
    "MOST_PIXELS",
    "decoded_image",
    "image_size",
    "open_image",
    "read_image",
    "rgb_image",
    "upright_size",
]

MOST_PIXELS = 89_478_485
"""Pixels that an image may have; up to here Pillow, too, takes an image for no bomb."""

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    *((mark, "TIFF") for mark in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
)
# The tag of EXIF that cameras write.
_ORIENTATION = 274
# Its values for a quarter turn.
_SIDEWAYS = range(5, 9)
_WIDTH, _HEIGHT = 256, 257  # tags of TIFF


def open_image(content: bytes, where: str) -> Any:
    """Return a Pillow image whose header is read and whose pixels are not.

    Raises:
        DataError: for bytes of another format, for too many pixels, and without Pillow.
    """
    require_package("PIL", "pillow", "an image")
    from PIL import Image

    where = printable(where)
    name = _format_of(content)
    if name is None:
        raise DataError(
            f"{where}: is no PNG, JPEG, WebP, GIF, BMP or TIFF image; convert it to one of them, replace "
            "or remove it"
        )
    if name == "WEBP":  # whose decoder has room made for all pixels before the header can be asked
        _require_pixels(*_webp_size(content, where), where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of a size, which is looked at below, and of odd metadata
            image = Image.open(io.BytesIO(content), formats=[name])
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{where}: an image of more than {MOST_PIXELS:,} pixels; make it smaller"
        ) from error
    except Exception as error:  # a damaged header makes decoders fail in many ways
        raise DataError(
            f"{where}: is no {name} image that can be read; replace or remove it"
        ) from error
    _require_pixels(*image.size, where)
    if name == "PNG" and "exif" not in image.info and (late := _late_exif(content)):
        image.info["exif"] = late
    return image


def _format_of(content: bytes) -> str | None:
    """Return the format that bytes begin like, by Pillow's name; None for any other."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    return next((name for mark, name in _BEGINNINGS if content.startswith(mark)), None)


def _require_pixels(width: int, height: int, where: str) -> None:
    if width * height > MOST_PIXELS:
        raise DataError(
            f"{where}: an image of {width} x {height} pixels; at most {MOST_PIXELS:,} pixels are read, so "
            "make it smaller"
        )


def _webp_size(content: bytes, where: str) -> tuple[int, int]:
    """Return width and height of a WebP image from the head of its first chunk."""
    kind, head = content[12:16], content[20:30].ljust(10, b"\0")
    if kind == b"VP8X":
        sides = (int.from_bytes(head[first : first + 3], "little") + 1 for first in (4, 7))
    elif kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        sides = ((bits >> shift & 0x3FFF) + 1 for shift in (0, 14))
    elif kind == b"VP8 ":
        sides = (side & 0x3FFF for side in struct.unpack("<HH", head[6:10]))
    else:
        raise DataError(f"{where}: is no WEBP image that can be read; replace or remove it")
    width, height = sides
    return width, height


def _late_exif(content: bytes) -> bytes | None:
    """Return the EXIF chunk of a PNG wherever it is; Pillow decodes all pixels to find a late one."""
    return next((body for kind, body in _png_chunks(content) if kind == b"eXIf"), None)


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while len(head := content[place : place + 8]) == 8:
        size = int.from_bytes(head[:4], "big")
        yield head[4:], content[place + 8 : place + 8 + size] if head[4:] == b"eXIf" else b""
        place += size + 12


def image_size(media: Media) -> tuple[int, int]:
    """Return width and height of an image as it is to be seen, from its header.

    Raises:
        DataError: for a file that cannot be read as an image.
    """
    return upright_size(open_image(content_of(media), media.path))


def upright_size(image: Any) -> tuple[int, int]:
    """Return width and height of a Pillow image once it is turned as its header asks for."""
    width, height = image.size
    if image.format == "TIFF":  # of which some releases of Pillow give the size as turned
        width, height = image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
    sideways = _orientation(image) in _SIDEWAYS
    return (int(height), int(width)) if sideways else (int(width), int(height))


def _orientation(image: Any) -> int:
    """Return the orientation that an image's header asks for, 1 to 8; 1 for one that cannot be read."""
    from PIL import Image

    try:
        # The method of PNG images decodes all pixels first, which may bring more metadata.
        found = Image.Image.getexif(image).get(_ORIENTATION)
    except Exception:  # damaged metadata; programs that show images pass over it, too
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def read_image(media: Media) -> Any:
    """Return an image's pixels as a Pillow image in RGB.

    Raises:
        DataError: for a file that is damaged.
    """
    return decoded_image(content_of(media), media.path)


def decoded_image(content: bytes, where: str) -> Any:
    """Return the pixels of an image's bytes as a Pillow image in RGB, turned as its header asks for.

    Of an image with several frames it is the first.

    Raises:
        DataError: for bytes that are damaged, and samples whose range is not known.
    """
    image = open_image(content, where)
    turn = _orientation(image)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            image.load()
            if image.format == "TIFF":  # Pillow may have turned it
                turn = _orientation(image)
            return _turned(rgb_image(image, where), turn)
    except DataError:
        raise
    except Exception as error:  # damaged data makes decoders fail in many ways
        raise DataError(
            f"{printable(where)}: the image is damaged ({printable(error)}); replace or remove it"
        ) from error


def _turned(image: Any, orientation: int) -> Any:
    """Return an image upright, of an orientation as EXIF counts them."""
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(ways[orientation]) if orientation in ways else image


def rgb_image(image: Any, where: str) -> Any:
    """Return a Pillow image of any mode in RGB of 8 bits; what is transparent has the colour below.

    Samples of 16 bits are divided by 257, so that 65,535 becomes 255.

    Raises:
        DataError: for samples of 32 bits, whose range no file gives.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = _of_16_bits(image)
    if image.mode in ("I", "F"):
        raise DataError(
            f"{printable(where)}: the image has samples of 32 bits, whose range is not known; save it with 8 "
            "or 16 bits"
        )
    return image.convert("RGB")


def _of_16_bits(image: Any) -> Any:
    import numpy as np
    from PIL import Image

    samples = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((samples + 128) // 257).astype(np.uint8))
