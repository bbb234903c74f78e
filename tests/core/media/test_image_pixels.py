"""Pixels of images: upright as EXIF says, in 8 bits and RGB, whatever the file stores."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, Media
from emberge.media import MediaFolder, image_size, read_image
from PIL import Image

from tests.support.drawn_images import drawing, saved


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[bytes], Media]:
    folder = MediaFolder(tmp_path / "media")
    return lambda content: folder.add_bytes("image", content)


def pixels(media: Media) -> Any:
    return np.asarray(read_image(media))


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
