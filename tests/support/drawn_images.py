"""Small drawn images, and images as the bytes of their files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def drawing() -> Image.Image:
    """Three by two pixels, each of its own grey."""
    return Image.fromarray(np.arange(10, 70, 10, dtype=np.uint8).reshape(2, 3))
