"""Files of images and clips: written once by content, and gone with the process without a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from emberge import DataError
from emberge.media import MEDIA_BYTES, MediaFolder, read_media


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


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    folder = MediaFolder(read_from=tmp_path)
    with pytest.raises(DataError, match=r"none\.png: cannot be read"):
        folder.add_file("image", "none.png")
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MEDIA_BYTES + 1)
    with pytest.raises(DataError, match="at most 268 MB"):
        folder.add_file("image", "large.png")
