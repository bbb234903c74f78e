"""Images: their size from the header, and their pixels."""

from __future__ import annotations

import io
import warnings
from typing import Any

from emberge.contracts.media import Media
from emberge.errors import DataError
from emberge.media.media_files import content_of, require_package

__all__ = ["decoded_image", "image_size", "open_image", "read_image", "upright_size"]

# The tag of EXIF that cameras write, and its values for a quarter turn.
_ORIENTATION, _SIDEWAYS = 274, range(5, 9)


def open_image(content: bytes, where: str) -> Any:
    """Return a Pillow image whose header is read and whose pixels are not.

    Raises:
        DataError: for bytes that are no image, and without Pillow.
    """
    require_package("PIL", "pillow", "an image")
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # A bomb's size is refused by the limit of the model's patches, before its pixels are read.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            found = Image.open(io.BytesIO(content))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where}: is no image that Pillow reads; replace or remove it") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{where}: {error}; make the image smaller") from error
    return found


def image_size(media: Media) -> tuple[int, int]:
    """Return width and height of an image as it is to be seen, from its header.

    Raises:
        DataError: for a file that cannot be read as an image.
    """
    return upright_size(open_image(content_of(media), media.path))


def upright_size(image: Any) -> tuple[int, int]:
    """Return width and height of a Pillow image once it is turned as its header asks for."""
    width, height = image.size
    turned = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
    return (int(height), int(width)) if turned else (int(width), int(height))


def read_image(media: Media) -> Any:
    """Return an image's pixels as a Pillow image in RGB.

    Raises:
        DataError: for a file that is damaged.
    """
    return decoded_image(content_of(media), media.path)


def decoded_image(content: bytes, where: str) -> Any:
    """Return the pixels of an image's bytes as a Pillow image in RGB, turned as its header asks for.

    Raises:
        DataError: for bytes that are damaged.
    """
    image = open_image(content, where)
    try:
        image.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where}: the image is damaged ({error}); replace or remove it") from error
    from PIL import ImageOps

    return ImageOps.exif_transpose(image).convert("RGB")
