"""Images and clips from outside: known formats, bounded sizes, and damaged files named with their row."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataError, DataRef, Media
from emberge.data import check_entries, load_datasets
from emberge.media import MediaFolder, image_size, media_files, read_clip, read_image
from emberge_data import JsonLines
from PIL import Image, ImageFile
from scipy.io import wavfile

from tests.support.drawn_images import saved

RATE = 16_000
SIDE = 16_000  # pixels of an image that is too large


def keep(folder: Path, kind: Any, content: bytes) -> Media:
    return MediaFolder(folder / "media").add_bytes(kind, content)


def refusal(folder: Path, **row: Any) -> str:
    """The error of a data set whose second line is this row."""
    path = folder / "rows.jsonl"
    path.write_text("\n" + json.dumps({**row, "text": "a"}) + "\n")
    with pytest.raises(DataError) as caught:
        load_datasets(
            [DataEntry(path=DataRef(str(path)))],
            readers=[JsonLines()],
            resolve=lambda reference: Path(reference.text),
        )
    assert "rows.jsonl:2: " in str(caught.value)
    return str(caught.value)


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
    (tmp_path / "cat.png").write_bytes(content)
    said = refusal(tmp_path, image="cat.png")
    assert "cat.png: is no PNG, JPEG, WebP, GIF or BMP image that can be read" in said


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_a_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    media = keep(tmp_path, "image", b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IEND", b""))
    for read in (image_size, read_image):
        with pytest.raises(DataError, match=rf"{media.hash}.* pixels.*smaller"):
            read(media)


def test_a_size_is_learnt_without_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = saved(Image.effect_noise((64, 48), 50), "PNG")
    media = keep(tmp_path, "image", whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded"))
    assert image_size(media) == (64, 48)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_a_truncated_image_is_refused_with_its_line(tmp_path: Path, kind: str) -> None:
    whole = saved(Image.effect_noise((64, 48), 50).convert("RGB"), kind)
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    path = tmp_path / "rows.jsonl"
    path.write_text('{"image": "half", "caption": "a"}\n')
    found = check_entries(
        [DataEntry(path=DataRef(str(path)))],
        readers=[JsonLines()],
        resolve=lambda reference: Path(reference.text),
    ).problems
    assert [problem.where for problem in found] == [f"{path}:1"]
    assert "half" in found[0].message


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(media_files.MEDIA_BYTES + 1)
    assert "at most 268 MB" in refusal(tmp_path, image="large.png")


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
    ("content", "words"),
    [
        (headed(rate=0), "a sampling rate of 0 a second"),
        (headed(rate=384_001), "a sampling rate of 384001 a second"),
        (headed(width=7), ""),
        (b"", ""),
        (b"RIFF\0\0\0\0WAVE", ""),
        (b"RIFF\x24\0\0\0WAVEfmt " + b"\xff" * 40, ""),
        (wav(np.array([0.5, np.nan], np.float32)), "the clip has samples that are no numbers"),
        (wav(np.full((8, 2), -np.inf, np.float32)), "the clip has samples that are no numbers"),
        (wav(np.full(8, 1e300)), "the clip has samples that are no numbers"),
    ],
)
def test_a_clip_that_is_no_recording_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    assert f"a.wav: {words}" in refusal(tmp_path, audio="a.wav")


@pytest.mark.parametrize(
    ("samples", "rate", "words"),
    [
        ([0.5] * 8, 0, "rate"),
        ([0.5] * 8, float("inf"), "rate"),
        ([0.5] * 8, None, "rate"),
        ([0.5, float("nan")], RATE, "samples that are no numbers"),
        ([], RATE, "empty"),
        ([0.0] * 8, RATE, "silent"),
        ("abc", RATE, "array of numbers"),
        ([[1.0], [1.0, 2.0]], RATE, "array of numbers"),
        ([[[0.5]]], RATE, "array of numbers"),
    ],
)
def test_an_array_that_is_no_recording_is_named(
    tmp_path: Path, samples: Any, rate: Any, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_clip(MediaFolder(tmp_path).add_clip(samples, rate))
    said = str(caught.value)
    assert words in said or (words == "array of numbers" and "needs samples" in said)


def test_floats_of_another_scale_are_refused(tmp_path: Path) -> None:
    samples = np.full(8, -16.0, np.float32)
    assert read_clip(keep(tmp_path, "audio", wav(samples))).samples[0] == -16
    with pytest.raises(DataError, match=r"up to 16\.5.*from -1 to 1; scale"):
        read_clip(keep(tmp_path, "audio", wav(np.array([0.5, 16.5], np.float32))))


def test_a_header_that_promises_more_than_there_is_costs_nothing(tmp_path: Path) -> None:
    whole = bytearray(headed())
    whole[40:44] = b"\xff\xff\xff\xff"
    assert len(read_clip(keep(tmp_path, "audio", bytes(whole))).samples) == 8
