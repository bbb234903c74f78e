"""Bytes and arrays of rows are kept once, by content; files are seen to be the ones that were read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emberge import Media
from emberge.errors import DataError
from emberge.media import MediaFolder, image_size, read_clip, read_image, resample_clip
from PIL import Image

RATE = 16_000


def tone(hertz: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def test_equal_bytes_are_one_file(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    red = Image.new("RGB", (8, 6), "red")
    assert folder.add_image(red) == folder.add_image(red.copy())
    assert len(list((tmp_path / "media").iterdir())) == 1


def test_an_image_comes_back_with_its_pixels(tmp_path: Path) -> None:
    media = MediaFolder(tmp_path).add_image(Image.new("RGB", (8, 6), (1, 2, 3)))
    assert image_size(media) == (8, 6)
    assert read_image(media).getpixel((7, 5)) == (1, 2, 3)


def test_samples_come_back_exactly(tmp_path: Path) -> None:
    samples = tone(440)
    clip = read_clip(MediaFolder(tmp_path).add_clip(samples, RATE))
    assert clip.rate == RATE
    assert np.array_equal(clip.samples, samples)


def test_channels_are_averaged(tmp_path: Path) -> None:
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
    media, _ = MediaFolder(beside=tmp_path).add_file("audio", "a.wav")
    # A step of the width, and once more because the range is not symmetric.
    assert np.abs(read_clip(media).samples - wanted).max() < 2 * 2.0 ** (1 - whole.bits) + 1e-6


def test_without_a_store_files_go_with_the_process() -> None:
    script = (
        "from emberge.media import MediaFolder\n"
        "from pathlib import Path\n"
        "path = Path(MediaFolder().add_bytes('image', b'bytes').path)\n"
        "assert path.is_file()\n"
        "print(path)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not Path(ran.stdout.strip()).exists()


def test_a_file_that_changed_is_not_read(tmp_path: Path) -> None:
    media = MediaFolder(tmp_path).add_image(Image.new("RGB", (8, 6), "red"))
    Path(media.path).write_bytes(b"another")
    with pytest.raises(DataError, match=Path(media.path).name):
        read_image(media)


@pytest.mark.parametrize(("samples", "word"), [([], "empty"), ([0.0] * 10, "silent")])
def test_a_clip_without_sound_is_refused(tmp_path: Path, samples: list[float], word: str) -> None:
    media = MediaFolder(tmp_path).add_clip(samples, RATE)
    with pytest.raises(DataError, match=f"{media.hash}.*{word}"):
        read_clip(media)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path)
    whole = Path(folder.add_image(Image.effect_noise((64, 64), 50)).path).read_bytes()
    for content in (whole[: len(whole) // 2], b"no image"):
        media = folder.add_bytes("image", content)
        with pytest.raises(DataError, match=media.hash):
            read_image(media)
    media = folder.add_bytes("audio", b"RIFF....WAVEfmt broken")
    with pytest.raises(DataError, match=media.hash):
        read_clip(media)


def test_other_sounds_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from emberge.media import sound_files

    monkeypatch.setattr(sound_files, "find_spec", lambda _: None)
    media = MediaFolder(tmp_path).add_bytes("audio", b"fLaC....")
    with pytest.raises(DataError, match=r"pip install 'emberge\[audio\]'"):
        read_clip(media)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.png"):
        MediaFolder(beside=tmp_path).add_file("image", "none.png")
    with pytest.raises(DataError, match=r"none\.png"):
        read_image(Media("image", "0" * 32, str(tmp_path / "none.png")))


def test_a_tone_keeps_its_pitch_when_resampled(tmp_path: Path) -> None:
    clip = read_clip(MediaFolder(tmp_path).add_clip(tone(440, rate=44_100), 44_100))
    found = resample_clip(clip, RATE)
    assert found.rate == RATE
    assert len(found.samples) == RATE
    spectrum = np.abs(np.fft.rfft(found.samples))
    assert int(spectrum.argmax()) == 440
