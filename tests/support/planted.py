"""Files that somebody has left in the current folder, under the names of modules that a child imports."""

from __future__ import annotations

from pathlib import Path

# Early ones of the standard library, of others, and our own.
NAMES = ("json", "socket", "xxhash", "numpy", "torch", "pluggy", "emberge", "emberge_ray")
PLANTED = """\
import pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()
raise SystemExit("a planted file ran")
"""


def plant(folder: Path) -> Path:
    """Write the files, and return their folder."""
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED)
    return folder


def ran(folder: Path) -> list[str]:
    """The planted files that ran."""
    return sorted(file.name for file in folder.glob("*.ran"))
