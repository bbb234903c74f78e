"""Files of images and clips: written once by content, and gone with the process without a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from emberge import DataError
from emberge.media import MEDIA_BYTES, MediaFolder, read_media
from PIL import Image
from scipy.io import wavfile


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


def test_equal_bytes_are_one_file_and_a_changed_one_is_named(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "store")
    media = folder.add_bytes("image", b"bytes")
    assert folder.add_bytes("image", b"bytes") == media
    assert len(list((tmp_path / "store").iterdir())) == 1
    assert read_media(media) == b"bytes"
    Path(media.path).write_bytes(b"others")
    with pytest.raises(DataError, match="has changed since"):
        read_media(media)


@pytest.mark.parametrize(
    ("mode", "written_mode"),
    [("P", "P"), ("CMYK", "RGB"), ("F", "RGB"), ("I", "I;16"), ("I;16", "I;16"), ("I;16B", "I;16")],
)
def test_an_image_is_written_in_a_mode_of_png(mode: str, written_mode: str, tmp_path: Path) -> None:
    media = MediaFolder(tmp_path).add_image(Image.new(mode, (2, 3)))
    with Image.open(media.path) as written:
        assert (written.mode, written.size) == (written_mode, (2, 3))


def test_the_channels_of_a_clip_are_written_as_float32(tmp_path: Path) -> None:
    media = MediaFolder(tmp_path).add_clip([[0.0, 0.5, -1.0], [1.0, 0.25, 0.0]], 8000)
    rate, samples = wavfile.read(media.path)
    assert (rate, samples.dtype, samples.tolist()) == (
        *(8000, "float32"),
        [[0.0, 1.0], [0.5, 0.25], [-1.0, 0.0]],
    )


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    folder = MediaFolder(read_from=tmp_path)
    with pytest.raises(DataError, match=r"none\.png: cannot be read"):
        folder.add_file("image", "none.png")
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MEDIA_BYTES + 1)
    with pytest.raises(DataError, match="at most 268 MB"):
        folder.add_file("image", "large.png")
