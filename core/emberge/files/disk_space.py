"""Whether the disk has room for a merge, and for what a killed one has left to write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from emberge.errors import Problem

__all__ = ["disk_space_problems"]


def disk_space_problems(size: int, out: Path, part: Path | None) -> Iterator[Problem]:
    """What is wrong with writing weights of so many bytes at `out`, of which `part` holds some already."""
    place = next(p for p in (out, *out.absolute().parents) if p.is_dir())
    free = shutil.disk_usage(place).free + (_held(part) if part is not None else 0)
    # A megabyte or so of configs and tokenizer stands beside the weights.
    if size + (1 << 20) > free:
        yield Problem(
            f"the merged model needs {size / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB "
            "free; make room or choose another place",
            str(out),
        )


def _held(part: Path) -> int:
    """Bytes of the disk that a folder's weights take; files have their full length from the start."""
    return sum(512 * path.stat().st_blocks for path in part.rglob("*.safetensors"))
