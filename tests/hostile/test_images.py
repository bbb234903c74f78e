"""Images from outside: six formats by content, bounded pixels, damaged files named."""

from __future__ import annotations

import json
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from emberge import DataEntry, DataError, DataRef, Media
from emberge.data import load_datasets
from emberge.media import MediaFolder, image_size, media_files, read_image
from emberge_data import JsonLines
from PIL import Image

from tests.support.drawn_images import saved

EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    b"(%pipe%touch ran) (w) file closefile\nshowpage\n%%EOF\n"
)
# Beginnings of other formats that Pillow knows.
OTHERS = {
    "eps": EPS,
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "tiff": b"II*\0" + bytes(60),
    "empty": b"",
}


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *, depth: int = 8, colour: int = 0, data: bytes = b"") -> bytes:
    """A PNG of this header, whose pixels may be missing."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[bytes], Media]:
    folder = MediaFolder(tmp_path / "media")
    return lambda content: folder.add_bytes("image", content)


def refusal(folder: Path, image: str) -> str:
    """The error of a data set whose second line names this image."""
    path = folder / "rows.jsonl"
    path.write_text("\n" + json.dumps({"image": image, "caption": "a"}) + "\n")
    with pytest.raises(DataError) as caught:
        load_datasets(
            [DataEntry(path=DataRef(str(path)))],
            readers=[JsonLines()],
            resolve=lambda reference: Path(reference.text),
        )
    return str(caught.value)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats_are_refused_whatever_their_name(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", never)
    (tmp_path / "cat.png").write_bytes(OTHERS[kind])
    message = refusal(tmp_path, "cat.png")
    assert "rows.jsonl:2: " in message
    assert "cat.png: is no PNG, JPEG, WebP, GIF or BMP image that can be read" in message


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_a_bomb_is_refused_by_its_header(keep: Callable[[bytes], Media], kind: str) -> None:
    side = 16_000
    content = {
        "PNG": png(side, side, data=zlib.compress(bytes(1000))),
        "BMP": b"BM" + bytes(8) + struct.pack("<IIiiHHIIiiII", 54, 40, side, side, 1, 24, *[0] * 6),
    }[kind]
    media = keep(content)
    for read in (image_size, read_image):
        with pytest.raises(DataError, match=rf"{media.hash}.* pixels.*smaller"):
            read(media)


def test_a_size_is_learnt_without_pixels(
    keep: Callable[[bytes], Media], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = saved(Image.effect_noise((64, 48), 50), "PNG")
    media = keep(whole[: len(whole) // 2])
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded"))
    assert image_size(media) == (64, 48)


def test_a_truncated_image_is_refused_with_its_line(tmp_path: Path) -> None:
    from emberge.data import check_entries

    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
        whole = saved(Image.effect_noise((64, 48), 50).convert("RGB"), kind)
        (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
        path = tmp_path / "rows.jsonl"
        path.write_text('{"image": "half", "caption": "a"}\n')
        entry = DataEntry(path=DataRef(str(path)))
        found = check_entries(
            [entry], readers=[JsonLines()], resolve=lambda reference: Path(reference.text)
        ).problems
        assert [problem.where for problem in found] == [f"{path}:1"]
        assert "half" in found[0].message


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(media_files.MEDIA_BYTES + 1)
    assert "at most 268 MB" in refusal(tmp_path, "large.png")
