"""The environment in which a clone runs where nothing is installed."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(folder: Path) -> dict[str, str]:
    """Return this process's environment with which `python -m emberge` runs from the clone.

    Plugins are found by entry points, which only a distribution has: one is written into `folder`, of
    pyproject.toml's. Nothing goes to the network, and nothing is written beside the sources.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    shutil.rmtree(folder, ignore_errors=True)
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    paths = [ROOT / "core", ROOT / "plugins", ROOT, folder]
    already = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *([already] if already else [])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
