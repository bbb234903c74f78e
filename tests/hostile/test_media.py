"""Images and clips from outside: known formats, bounded sizes, and damaged files."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, Media
from emberge.media import MediaFolder
from emberge_encoder.media.media_decoding import read_clip, read_image, read_image_size
from PIL import Image, ImageFile
from scipy.io import wavfile

from tests.support.drawn_images import saved

RATE = 16_000
SIDE = 16_000  # pixels of an image that is too large


def keep(folder: Path, kind: Any, content: bytes) -> Media:
    return MediaFolder(folder / "media").add_bytes(kind, content)


# ── images ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "content",
    [
        # Pillow would start a program.
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(%pipe%touch ran)\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"II*\0" + bytes(60),
        b"",
    ],
    ids=["eps", "svg", "tiff", "empty"],
)
def test_other_formats_are_refused_whatever_their_name(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    with pytest.raises(DataError, match="is no PNG, JPEG, WEBP, GIF, BMP image"):
        read_image(keep(tmp_path, "image", content))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_a_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    media = keep(tmp_path, "image", b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IEND", b""))
    for read in (read_image_size, read_image):
        with pytest.raises(DataError, match=rf"{media.hash}.* pixels"):
            read(media)


def test_a_size_is_learnt_without_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = saved(Image.effect_noise((64, 48), 50), "PNG")
    media = keep(tmp_path, "image", whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded"))
    assert read_image_size(media) == (64, 48)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_a_truncated_image_is_refused(tmp_path: Path, kind: str) -> None:
    whole = saved(Image.effect_noise((64, 48), 50).convert("RGB"), kind)
    with pytest.raises(DataError):
        read_image(keep(tmp_path, "image", whole[: len(whole) // 2]))


# ── clips ───────────────────────────────────────────────────────────────────────────────────────


def wav(samples: Any) -> bytes:
    buffer = io.BytesIO()
    wavfile.write(buffer, RATE, np.asarray(samples))
    return buffer.getvalue()


def headed(*, rate: int = RATE, width: int = 16) -> bytes:
    """A WAV file of eight samples and of any header."""
    data, block = b"\1\0" * 8, width // 8
    head = struct.pack("<HHIIHH", 1, 1, rate, rate * block & 0xFFFFFFFF, block, width)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", 16) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "content",
    [
        *(headed(width=7), b"", b"RIFF\0\0\0\0WAVE", b"RIFF\x24\0\0\0WAVEfmt " + b"\xff" * 40),
        *(wav(np.array([0.5, np.nan], np.float32)), wav(np.full((8, 2), -np.inf, np.float32))),
        *(wav(np.full(8, 1e300)), wav(np.zeros(0, np.float32))),
    ],
)
def test_a_clip_that_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError):
        read_clip(keep(tmp_path, "audio", content))


def test_a_header_that_promises_more_than_there_is_costs_nothing(tmp_path: Path) -> None:
    whole = bytearray(headed())
    whole[40:44] = b"\xff\xff\xff\xff"
    assert len(read_clip(keep(tmp_path, "audio", bytes(whole))).samples) == 8
