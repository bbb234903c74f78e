"""Bytes and arrays of rows are kept once, by content; files are seen to be the ones that were read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, Media
from emberge.media import MediaFolder
from emberge_encoder.media import media_decoding
from emberge_encoder.media.media_decoding import (
    read_clip,
    read_image,
    read_image_size,
    resample_clip,
)
from PIL import Image

from tests.support.drawn_images import drawing, saved

RATE = 16_000


def tone(hertz: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def test_an_image_comes_back_with_its_pixels_and_equal_bytes_are_one_file(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    red = Image.new("RGB", (8, 6), "red")
    assert folder.add_image(red) == folder.add_image(red.copy())
    assert len(list((tmp_path / "media").iterdir())) == 1
    media = MediaFolder(tmp_path).add_image(Image.new("RGB", (8, 6), (1, 2, 3)))
    assert read_image_size(media) == (8, 6)
    assert read_image(media).getpixel((7, 5)) == (1, 2, 3)


def test_samples_come_back_exactly_and_channels_averaged(tmp_path: Path) -> None:
    samples = tone(440)
    clip = read_clip(MediaFolder(tmp_path).add_clip(samples, RATE))
    assert clip.rate == RATE
    assert np.array_equal(clip.samples, samples)
    left, right = tone(440), tone(660)
    clip = read_clip(MediaFolder(tmp_path).add_clip(np.stack([left, right]), RATE))
    assert np.allclose(clip.samples, (left + right) / 2)


@pytest.mark.parametrize("width", ["uint8", "int16", "int32"])
def test_samples_of_every_width_are_in_the_same_range(tmp_path: Path, width: str) -> None:
    from scipy.io import wavfile

    whole = np.iinfo(width)
    middle = (int(whole.max) + int(whole.min) + 1) / 2
    wanted = tone(440) * 0.5
    stored = (middle + wanted * (float(whole.max) - middle)).astype(width)
    wavfile.write(tmp_path / "a.wav", RATE, stored)
    media = MediaFolder(read_from=tmp_path).add_file("audio", "a.wav")
    # A step of the width, and once more because the range is not symmetric.
    assert np.abs(read_clip(media).samples - wanted).max() < 2 * 2.0 ** (1 - whole.bits) + 1e-6


def test_damaged_changed_and_missing_files_are_named(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path)
    whole = Path(folder.add_image(Image.effect_noise((64, 64), 50)).path).read_bytes()
    for content in (whole[: len(whole) // 2], b"no image"):
        media = folder.add_bytes("image", content)
        with pytest.raises(DataError, match=media.hash):
            read_image(media)
    media = folder.add_bytes("audio", b"RIFF....WAVEfmt broken")
    with pytest.raises(DataError, match=media.hash):
        read_clip(media)
    media = MediaFolder(tmp_path).add_image(Image.new("RGB", (8, 6), "red"))
    Path(media.path).write_bytes(b"another")
    with pytest.raises(DataError, match=Path(media.path).name):
        read_image(media)
    with pytest.raises(DataError, match=r"none\.png"):
        MediaFolder(read_from=tmp_path).add_file("image", "none.png")
    with pytest.raises(DataError, match=r"none\.png"):
        read_image(Media("image", "0" * 32, str(tmp_path / "none.png")))


def test_other_sounds_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_decoding, "find_spec", lambda _: None)
    media = MediaFolder(tmp_path).add_bytes("audio", b"fLaC....")
    with pytest.raises(DataError, match=r"pip install 'emberge\[audio\]'"):
        read_clip(media)


def test_a_tone_keeps_its_pitch_when_resampled(tmp_path: Path) -> None:
    clip = read_clip(MediaFolder(tmp_path).add_clip(tone(440, rate=44_100), 44_100))
    found = resample_clip(clip, RATE)
    assert found.rate == RATE
    assert len(found.samples) == RATE
    spectrum = np.abs(np.fft.rfft(found.samples))
    assert int(spectrum.argmax()) == 440


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[bytes], Media]:
    folder = MediaFolder(tmp_path / "media")
    return lambda content: folder.add_bytes("image", content)


def pixels(media: Media) -> Any:
    return np.asarray(read_image(media))


@pytest.mark.parametrize(("kind", "orientation"), [("PNG", 3), ("WEBP", 6), ("JPEG", 6)])
def test_orientations_are_turned(
    keep: Callable[[bytes], Media], kind: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    options: dict[str, Any] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}.get(kind, {})
    media = keep(saved(drawing(), kind, exif=exif, **options))
    drawn = np.asarray(drawing())
    wanted = drawn[::-1, ::-1] if orientation == 3 else drawn.T[:, ::-1]
    shown = pixels(media)
    assert shown.shape == (*wanted.shape, 3)
    assert np.abs(shown[..., 0].astype(int) - wanted).max() <= (2 if kind == "JPEG" else 0)
    assert read_image_size(media) == (shown.shape[1], shown.shape[0])


def test_16_bits_keep_their_brightness_rounded(
    keep: Callable[[bytes], Media], tmp_path: Path
) -> None:
    wanted = np.array([[0, 1, 128], [200, 254, 255]])
    image = Image.fromarray((wanted * 257).astype(np.uint16))
    shown = pixels(keep(saved(image, "PNG")))
    assert np.array_equal(shown, np.stack([wanted] * 3, axis=-1))
    image = Image.fromarray(np.array([[128, 129, 65535 - 129, 65535 - 128]], np.uint16))
    assert pixels(keep(saved(image, "PNG")))[0, :, 0].tolist() == [0, 1, 254, 255]
    image = Image.fromarray(np.full((2, 3), 100 * 257, np.uint16))
    for mode in ("I;16", "I;16B"):
        media = MediaFolder(tmp_path).add_image(image if mode == "I;16" else swapped(image))
        assert pixels(media).tolist() == [[[100] * 3] * 3] * 2


def swapped(image: Image.Image) -> Image.Image:
    """The image with the order of bytes of Motorola."""
    return Image.frombytes("I;16B", image.size, np.asarray(image).astype(">u2").tobytes())
