"""Merges on a disk of a few megabytes that others fill up: `python full_disk.py MODELS DISK`.

To be run where mounting is allowed, as by `unshare --map-root-user --mount`; the disk is gone with the
process. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.killed_merge import digest, merge


class Filler:
    """A file of somebody else's that takes all the room there is, from a certain piece of work on."""

    def __init__(self, disk: Path, at: int) -> None:
        self.path, self.at, self.pieces = disk / "filler", at, 0

    def __call__(self, *_: object) -> None:
        self.pieces += 1
        if self.pieces == self.at:
            with contextlib.suppress(OSError), self.path.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(256))


def said_by(work: Callable[[], object]) -> dict[str, Any]:
    """How a piece of work ended."""
    try:
        work()
    except Exception as error:
        code = getattr(error, "exit_code", None)
        return {"error": type(error).__name__, "said": str(error), "code": code}
    return {"error": None}


def by_call(models: Path, disk: Path) -> dict[str, Any]:
    """`merge_checkpoints` with a disk that fills up half-way, and again with room."""
    out = disk / "out"
    filler, counter = Filler(disk, 6), Filler(disk, -1)
    full = said_by(lambda: merge(models, out, filler))
    full["out"] = out.exists()
    filler.path.unlink()
    room = said_by(lambda: merge(models, out, counter))
    merge(models, Path(f"{disk}.expected"))
    same = digest(out) == digest(Path(f"{disk}.expected"))
    left = sorted(path.name for path in disk.iterdir())
    return {"full": full, "room": room, "again": counter.pieces, "same": same, "left": left}


PLUGIN = """
from dataclasses import dataclass
from emberge import MergeStrategy, hookimpl

@dataclass(frozen=True, kw_only=True)
class Filling(MergeStrategy):
    "Take the mean while somebody fills the disk."

    def merge(self, block, stats):
        import tests.support.full_disk as room
        if room.FILLER is not None:
            room.FILLER()
        return block.tensors.mean(0)

@hookimpl
def register_merge_strategies():
    return {"filling": Filling}
"""
FILLER: Filler | None = None


def by_command(models: Path, disk: Path) -> dict[str, Any]:
    """`emberge run` with a disk that fills up half-way, and again with room."""
    from emberge.cli.main import main

    import tests.support.full_disk as shared

    beside = disk.parent
    (beside / "filling.py").write_text(PLUGIN)
    step = {"merge": {"models": [str(models / "m1"), str(models / "m2")], "strategy": "filling"}}
    (beside / "recipe.yaml").write_text(json.dumps({"steps": {"soup": step}}))
    words = ["run", str(beside / "recipe.yaml"), "--plugin", str(beside / "filling.py")]
    ends = []
    for at in (5, -1):
        shared.FILLER = filler = Filler(disk, at)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = main([*words, "--out", str(disk / "run"), "--workers", "1"])
        stands = (disk / "run" / "soup").exists()
        ends.append({"code": code, "said": said.getvalue(), "out": stands, "pieces": filler.pieces})
        filler.path.unlink(missing_ok=True)
    return {"full": ends[0], "room": ends[1]}


def go(models: Path, disk: Path) -> None:
    import emberge.merging.streaming.stream as journal

    journal.INTERVAL = 0.0
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    print(json.dumps({"call": by_call(models, disk), "command": by_command(models, disk)}))


if __name__ == "__main__":
    go(Path(sys.argv[1]), Path(sys.argv[2]))
