"""Images from outside: six formats by content, bounded pixels, headers read alone, right colours."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataError, DataRef, Media
from emberge.data import load_datasets
from emberge.media import MediaFolder, image_files, image_size, media_files, read_image
from emberge_data import JsonLines
from PIL import Image

EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    b"(%pipe%touch ran) (w) file closefile\nshowpage\n%%EOF\n"
)
# Beginnings of other formats that Pillow knows.
OTHERS = {
    "eps": EPS,
    "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 4, 4, 8, 3) + bytes(20),
    "pcx": struct.pack("<BBBBHHHHHH", 10, 5, 1, 8, 0, 0, 3, 3, 72, 72) + bytes(112),
    "ico": struct.pack("<HHH", 0, 1, 1) + bytes(40),
    "icns": b"icns" + struct.pack(">I", 40) + bytes(32),
    "ppm": b"P6 2 2 255\n" + bytes(12),
    "fli": struct.pack("<IHHHHHHI", 128, 0xAF11, 1, 4, 4, 8, 0, 5) + bytes(108),
    "wmf": b"\xd7\xcd\xc6\x9a\0\0" + bytes(30),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "empty": b"",
}


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *, depth: int = 8, colour: int = 0, data: bytes = b"") -> bytes:
    """A PNG of this header, whose pixels may be missing."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def drawing() -> Image.Image:
    """Three by two pixels, each of its own grey."""
    return Image.fromarray(np.arange(10, 70, 10, dtype=np.uint8).reshape(2, 3))


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[bytes], Media]:
    folder = MediaFolder(tmp_path / "media")
    return lambda content: folder.add_bytes("image", content)


def pixels(media: Media) -> Any:
    return np.asarray(read_image(media))


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
def test_other_formats_reach_no_decoder_whatever_their_name(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a decoder or a program was started")

    monkeypatch.setattr(Image, "open", never)
    monkeypatch.setattr(subprocess, "Popen", never)
    (tmp_path / "cat.png").write_bytes(OTHERS[kind])
    message = refusal(tmp_path, "cat.png")
    assert "rows.jsonl:2: " in message
    assert "cat.png: is no PNG, JPEG, WebP, GIF, BMP or TIFF image; convert it" in message


def test_the_format_goes_by_content_and_one_decoder_is_asked(
    keep: Callable[[bytes], Media], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    plain = Image.open

    def opened(file: Any, formats: Any = None) -> Any:
        asked.append(formats)
        return plain(file, formats=formats)

    monkeypatch.setattr(Image, "open", opened)
    kinds = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]
    for kind in kinds:
        assert image_size(keep(saved(drawing().convert("RGB"), kind))) == (3, 2)
    assert asked == [[kind] for kind in kinds]


def test_both_orders_of_bytes_are_tiff(keep: Callable[[bytes], Media]) -> None:
    big = Image.fromarray(np.full((2, 3), 7, np.uint8))
    for options in ({}, {"big_tiff": True}):
        assert pixels(keep(saved(big, "TIFF", **options))).max() == 7
    motorola = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 0)
    with pytest.raises(DataError, match="no TIFF image"):
        read_image(keep(motorola))


@pytest.mark.parametrize("side", [10_000, 16_000])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_a_bomb_is_refused_by_its_header(
    keep: Callable[[bytes], Media], kind: str, side: int
) -> None:
    content = {
        "PNG": png(side, side, data=zlib.compress(bytes(1000))),
        "WEBP": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0"
        + bytes(4)
        + (side - 1).to_bytes(3, "little") * 2,
        "BMP": b"BM" + bytes(8) + struct.pack("<IIiiHHIIiiII", 54, 40, side, side, 1, 24, *[0] * 6),
    }[kind]
    media = keep(content)
    for read in (image_size, read_image):
        with pytest.raises(DataError, match=rf"{media.hash}.* pixels.*smaller"):
            read(media)


@pytest.mark.parametrize("lossless", [True, False])
def test_the_size_of_webp_is_known_before_its_decoder(
    keep: Callable[[bytes], Media], monkeypatch: pytest.MonkeyPatch, lossless: bool
) -> None:
    content = saved(Image.new("RGB", (31, 17)), "WEBP", lossless=lossless)
    assert image_files._read_webp_size(content, "a") == (31, 17)
    monkeypatch.setattr(image_files, "MOST_PIXELS", 31 * 17 - 1)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("the decoder was asked"))
    with pytest.raises(DataError, match="31 x 17"):
        image_size(keep(content))


def test_a_webp_of_no_known_chunk_is_refused(keep: Callable[[bytes], Media]) -> None:
    for content in (b"RIFF\x1e\0\0\0WEBPnone" + bytes(20), b"RIFF\x04\0\0\0WEBPVP8X"):
        with pytest.raises(DataError, match=r"WEBP|damaged"):
            read_image(keep(content))


def test_as_many_pixels_as_the_limit_are_read(
    keep: Callable[[bytes], Media], monkeypatch: pytest.MonkeyPatch
) -> None:
    media = keep(saved(drawing(), "PNG"))
    monkeypatch.setattr(image_files, "MOST_PIXELS", 6)
    assert image_size(media) == (3, 2)
    monkeypatch.setattr(image_files, "MOST_PIXELS", 5)
    with pytest.raises(DataError, match="3 x 2 pixels; at most 5"):
        image_size(media)


def test_the_limit_of_pixels_is_that_of_pillow() -> None:
    assert image_files.MOST_PIXELS == Image.MAX_IMAGE_PIXELS
    assert media_files.MEDIA_BYTES == 256 << 20


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

    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
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


def upright(orientation: int) -> Any:
    """The drawing's pixels as a viewer shows them, from the definition of EXIF: rows, then columns."""
    found = np.asarray(drawing())
    return {
        1: found,
        2: found[:, ::-1],
        3: found[::-1, ::-1],
        4: found[::-1],
        5: found.T,
        6: found.T[:, ::-1],
        7: found[::-1, ::-1].T,
        8: found.T[::-1],
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_all_eight_orientations_are_turned(
    keep: Callable[[bytes], Media], kind: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    options: dict[str, Any] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}.get(kind, {})
    media = keep(saved(drawing(), kind, exif=exif, **options))
    wanted = upright(orientation)
    shown = pixels(media)
    assert shown.shape == (*wanted.shape, 3)
    assert np.abs(shown[..., 0].astype(int) - wanted).max() <= (2 if kind == "JPEG" else 0)
    assert image_size(media) == (shown.shape[1], shown.shape[0])


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


def test_exif_behind_the_pixels_counts_for_size_and_pixels(keep: Callable[[bytes], Media]) -> None:
    whole = saved(drawing(), "PNG")
    late = whole[:-12] + chunk(b"eXIf", exif_of(6)) + whole[-12:]
    assert image_size(keep(late)) == (2, 3)
    assert np.array_equal(pixels(keep(late))[..., 0], upright(6))


@pytest.mark.parametrize(
    "exif",
    [b"", b"none", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", exif_of(9), exif_of(0)],
)
def test_exif_that_is_unsound_turns_nothing(keep: Callable[[bytes], Media], exif: bytes) -> None:
    whole = saved(drawing(), "PNG")
    for content in (
        whole[:33] + chunk(b"eXIf", exif) + whole[33:],
        whole[:-12] + chunk(b"eXIf", exif) + whole[-12:],
    ):
        assert image_size(keep(content)) == (3, 2)
        assert np.array_equal(pixels(keep(content))[..., 0], drawing())


def test_grey_of_16_bits_keeps_its_brightness(keep: Callable[[bytes], Media]) -> None:
    wanted = np.array([[0, 1, 128], [200, 254, 255]])
    image = Image.fromarray((wanted * 257).astype(np.uint16))
    for kind in ("PNG", "TIFF"):
        shown = pixels(keep(saved(image, kind)))
        assert np.array_equal(shown, np.stack([wanted] * 3, axis=-1))


def test_16_bits_are_rounded(keep: Callable[[bytes], Media]) -> None:
    image = Image.fromarray(np.array([[128, 129, 65535 - 129, 65535 - 128]], np.uint16))
    assert pixels(keep(saved(image, "PNG")))[0, :, 0].tolist() == [0, 1, 254, 255]


def test_16_bits_of_a_benchmark_are_kept(tmp_path: Path) -> None:
    image = Image.fromarray(np.full((2, 3), 100 * 257, np.uint16))
    for mode in ("I;16", "I;16B"):
        media = MediaFolder(tmp_path).add_image(image if mode == "I;16" else swapped(image))
        assert pixels(media).tolist() == [[[100] * 3] * 3] * 2


def swapped(image: Image.Image) -> Image.Image:
    """The image with the order of bytes of Motorola."""
    return Image.frombytes("I;16B", image.size, np.asarray(image).astype(">u2").tobytes())


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_samples_of_32_bits_are_refused(
    tmp_path: Path, keep: Callable[[bytes], Media], dtype: Any
) -> None:
    image = Image.fromarray(np.full((2, 3), 5, dtype))
    with pytest.raises(DataError, match=r"32 bits.*8 or 16"):
        read_image(keep(saved(image, "TIFF")))
    with pytest.raises(DataError, match="32 bits"):
        MediaFolder(tmp_path).add_image(image)


def test_inks_become_colours(keep: Callable[[bytes], Media]) -> None:
    for inks, colour in (((0, 0, 0, 0), 255), ((255, 255, 255, 0), 0), ((0, 0, 0, 255), 0)):
        media = keep(saved(Image.new("CMYK", (8, 8), inks), "JPEG", quality=100))
        assert np.abs(pixels(media).astype(int) - colour).max() <= 2


@pytest.mark.parametrize("transparency", [0, b"\x00\x80"])
def test_a_palette_has_its_colours_where_it_is_transparent(
    keep: Callable[[bytes], Media], transparency: int | bytes
) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    media = keep(saved(image, "PNG", transparency=transparency))
    assert pixels(media).tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_alpha_leaves_the_colour_below(keep: Callable[[bytes], Media]) -> None:
    media = keep(saved(Image.new("RGBA", (1, 1), (1, 2, 3, 0)), "PNG"))
    assert pixels(media).tolist() == [[[1, 2, 3]]]
    media = keep(saved(Image.new("LA", (1, 1), (9, 0)), "PNG"))
    assert pixels(media).tolist() == [[[9, 9, 9]]]
    media = keep(saved(Image.new("1", (1, 1), 1), "PNG"))
    assert pixels(media).tolist() == [[[255] * 3]]


def test_of_several_frames_the_first_is_read(keep: Callable[[bytes], Media]) -> None:
    frames = [Image.new("RGB", (2, 2), (shade, 0, 0)) for shade in (200, 100, 50)]
    for kind in ("GIF", "TIFF"):
        media = keep(saved(frames[0], kind, save_all=True, append_images=frames[1:]))
        assert pixels(media).tolist() == [[[200, 0, 0]] * 2] * 2


@pytest.mark.parametrize("name", ["/dev/zero", "fifo", "folder", "link", "nul\0"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    message = refusal(tmp_path, name)
    assert "rows.jsonl:2: " in message
    assert "not a regular file" in message or "no path" in message


def test_a_file_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(media_files.MEDIA_BYTES + 1)
    assert "at most 268 MB" in refusal(tmp_path, "large.png")
    monkeypatch.setattr(media_files, "MEDIA_BYTES", 10)
    assert MediaFolder(tmp_path).add_bytes("image", bytes(10)).kind == "image"
    with pytest.raises(DataError, match="an image has 11 bytes; at most 10"):
        MediaFolder(tmp_path).add_bytes("image", bytes(11))


def test_escapes_in_a_name_are_shown_as_such(tmp_path: Path) -> None:
    name = "a\x1b[31m\n.png"
    for content in (None, EPS):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        message = refusal(tmp_path, name)
        assert "\x1b" not in message
        assert message.count("\n") == 0
        assert "a\\x1b[31m\\n.png" in message
