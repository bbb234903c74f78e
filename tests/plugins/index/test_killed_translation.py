"""A translation that is killed again and again ends with the bytes of one that was not."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge import CheckpointError
from emberge_index.vectors import pieces, rewrite, translate_verb
from safetensors.numpy import save_file

from tests.support.translations import vectors, write_translation

KILLS = 20
ROWS, BLOCK = 4000, 64 * 24 * 4


@pytest.fixture(autouse=True)
def _noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BLOCK", BLOCK)
    monkeypatch.setattr(rewrite, "BLOCK", BLOCK)
    monkeypatch.setattr(rewrite, "NOTED", 0.0)


@pytest.fixture
def by(tmp_path: Path) -> Path:
    write_translation(tmp_path / "by", 24, 16)
    return tmp_path / "by"


def write(path: Path) -> None:
    given = vectors(ROWS, 24)
    if path.suffix == ".npy":
        np.save(path, given)
    elif path.suffix == ".safetensors":
        save_file({"a": np.arange(ROWS), "v": given, "z": np.ones((ROWS, 3, 1))}, path)
    else:
        pq.write_table(pa.table({"id": range(ROWS), "v": list(given)}), path, row_group_size=700)


def killed_at(path: Path, by: Path, out: Path, blocks: int) -> bool:
    """Translate in a copy of this process that dies after some blocks; False when it was done before."""
    child = os.fork()
    if not child:
        left = blocks

        def progress(done: int, total: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                time.sleep(0.01 * random.Random(blocks).random())  # the writer is anywhere
                os.kill(os.getpid(), signal.SIGKILL)

        code = 3
        try:
            translate_verb.translate_file(path, by, out, progress=progress)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_killed_twenty_times_it_ends_with_the_same_bytes(
    by: Path, tmp_path: Path, suffix: str
) -> None:
    path, out, whole = (tmp_path / f"{name}{suffix}" for name in ("old", "new", "whole"))
    write(path)
    translate_verb.translate_file(path, by, whole)
    draw, kills = random.Random(suffix), 0
    while kills < KILLS and killed_at(path, by, out, draw.randint(1, 4)):
        kills += 1
        assert not out.exists()
    assert kills == KILLS
    seen: list[int] = []
    translate_verb.translate_file(path, by, out, progress=lambda done, _: seen.append(done))
    assert len(seen) < ROWS // 64, "it went on from where it was"
    assert out.read_bytes() == whole.read_bytes()
    results = (out, whole)
    marks = {f"{one.name}.emberge.json" for one in results} if suffix == ".npy" else set()
    assert {one.name for one in tmp_path.iterdir()} == {
        "by",
        path.name,
        *(one.name for one in results),
        *marks,
    }


@pytest.mark.parametrize("change", ["input", "map"])
def test_after_a_change_it_begins_anew(by: Path, tmp_path: Path, change: str) -> None:
    path, out, whole = (tmp_path / f"{name}.npy" for name in ("old", "new", "whole"))
    write(path)
    assert killed_at(path, by, out, 9)
    if change == "input":
        np.save(path, vectors(ROWS, 24, seed=8))
    else:
        write_translation(by, 24, 16, kind="affine", texts=9)
        moved = write_translation(by, 24, 16)
        moved.fitted.offset[:] += 1
        moved.write(by, {})
    translate_verb.translate_file(path, by, whole)
    translate_verb.translate_file(path, by, out)
    assert out.read_bytes() == whole.read_bytes()


def test_two_cannot_write_one_file(by: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "old.npy", tmp_path / "new.npy"
    write(path)
    with (
        rewrite.working_on(rewrite.WorkFolder(out, "")),
        pytest.raises(CheckpointError, match=r"new\.npy"),
    ):
        translate_verb.translate_file(path, by, out)


def test_memory_does_not_grow_with_the_file(by: Path, tmp_path: Path) -> None:
    """Blocks that are read, mapped and written are all that is in memory, whatever the number of rows."""
    import tracemalloc

    def peak(rows: int) -> int:
        path, out = tmp_path / f"{rows}.npy", tmp_path / f"{rows}-new.npy"
        np.save(path, vectors(rows, 24))
        tracemalloc.start()
        translate_verb.translate_file(path, by, out)
        most: Any = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return int(most)

    peak(1000)  # imports
    assert peak(64_000) < peak(16_000) + 4 * BLOCK
