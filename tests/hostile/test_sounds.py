"""Clips from outside: rates and samples within limits, and regular files."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataError, DataRef, Media
from emberge.data import load_datasets
from emberge.media import MediaFolder, read_clip
from emberge_data import JsonLines
from scipy.io import wavfile

RATE = 16_000


def wav(samples: Any, rate: int = RATE) -> bytes:
    buffer = io.BytesIO()
    wavfile.write(buffer, rate, np.asarray(samples))
    return buffer.getvalue()


def headed(
    *, rate: int = RATE, channels: int = 1, width: int = 16, data: bytes = b"\1\0" * 8
) -> bytes:
    """A WAV file of any header."""
    block = channels * width // 8
    head = struct.pack("<HHIIHH", 1, channels, rate, rate * block & 0xFFFFFFFF, block, width)
    body = (
        b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[bytes], Media]:
    folder = MediaFolder(tmp_path / "media")
    return lambda content: folder.add_bytes("audio", content)


def refusal(folder: Path, sound: Any) -> str:
    """The error of a data set whose second line has this sound."""
    path = folder / "rows.jsonl"
    path.write_text("\n" + json.dumps({"audio": sound, "text": "a"}) + "\n")
    with pytest.raises(DataError) as caught:
        load_datasets(
            [DataEntry(path=DataRef(str(path)))],
            readers=[JsonLines()],
            resolve=lambda reference: Path(reference.text),
        )
    assert "rows.jsonl:2: " in str(caught.value)
    return str(caught.value)


def refused_array(folder: Path, samples: Any, rate: Any = RATE) -> str:
    """The error of a clip made of these samples."""
    with pytest.raises(DataError) as caught:
        read_clip(MediaFolder(folder).add_clip(samples, rate))
    return str(caught.value)


@pytest.mark.parametrize("rate", [0, 1, 999, 384_001, 2**31 - 1])
def test_a_rate_that_no_recording_has_is_refused(tmp_path: Path, rate: int) -> None:
    (tmp_path / "a.wav").write_bytes(headed(rate=rate))
    assert f"a.wav: a sampling rate of {rate} a second" in refusal(tmp_path, "a.wav")


@pytest.mark.parametrize("rate", [0, -1, 1e12, float("nan"), float("inf"), "16000", None])
def test_an_array_needs_a_rate_that_is_one(tmp_path: Path, rate: Any) -> None:
    assert "rate" in refused_array(tmp_path, [0.5] * 8, rate)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("channels", [1, 2])
def test_one_sample_that_is_no_number_is_refused(tmp_path: Path, bad: float, channels: int) -> None:
    samples = np.full((1000, channels), 0.5, np.float32)
    samples[700, -1] = bad
    (tmp_path / "a.wav").write_bytes(wav(samples))
    assert "a.wav: the clip has samples that are no numbers" in refusal(tmp_path, "a.wav")
    array = samples.T.tolist() if channels > 1 else samples[:, 0].tolist()
    message = refused_array(tmp_path, array)
    assert "samples that are no numbers" in message


def test_samples_too_large_for_32_bits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(np.full(8, 1e300)))
    assert "no numbers" in refusal(tmp_path, "a.wav")
    assert "no numbers" in refused_array(tmp_path, [1e300] * 8)


def test_floats_of_another_scale_are_refused(keep: Callable[[bytes], Media]) -> None:
    assert read_clip(keep(wav(np.full(8, -16.0, np.float32)))).samples[0] == -16
    for loud in (-16.5, 32767.0):
        with pytest.raises(DataError, match=rf"up to {abs(loud):g}.*from -1 to 1; scale"):
            read_clip(keep(wav(np.array([0.5, loud], np.float32))))


@pytest.mark.parametrize(("samples", "word"), [([], "empty"), ([0.0] * 8, "silent")])
def test_what_is_no_sound_is_refused(tmp_path: Path, samples: list[Any], word: str) -> None:
    assert word in refused_array(tmp_path, samples)


@pytest.mark.parametrize(
    "samples", [[["a"]], "abc", [[1.0], [1.0, 2.0]], {"a": 1}, [10**400], [[[0.5]]]]
)
def test_samples_are_an_array_of_numbers(tmp_path: Path, samples: Any) -> None:
    message = refused_array(tmp_path, samples)
    assert "no array of numbers" in message or "needs samples" in message


def test_a_header_that_promises_more_than_there_is_costs_nothing(
    keep: Callable[[bytes], Media],
) -> None:
    whole = bytearray(headed())
    whole[40:44] = b"\xff\xff\xff\xff"
    assert len(read_clip(keep(bytes(whole))).samples) == 8


@pytest.mark.parametrize(
    "content", [b"", b"RIFF\0\0\0\0WAVE", b"RIFF\x24\0\0\0WAVEfmt " + b"\xff" * 40, headed(width=7)]
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    assert "a.wav: " in refusal(tmp_path, "a.wav")
