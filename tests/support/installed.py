"""Wheels, and emberge installed from one into a fresh virtual environment."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from tests.support.commands import environment, python


def build_wheel(project: Path, into: Path, **variables: str) -> Path:
    """Build a project's wheel with what is installed here, so that no network is needed."""
    arguments = ("--wheel", "--no-isolation", "--outdir", str(into), str(project))
    python("-m", "build", *arguments, env=environment(**variables))
    (wheel,) = into.glob("*.whl")
    return wheel


def fresh_venv(folder: Path, *wheels: Path) -> Path:
    """A virtual environment that holds the wheels, and sees this one's other packages; its `bin`.

    A path in a `.pth` file is searched for packages, but no `.pth` file in it is read: the editable
    install of emberge here stays out of sight.
    """
    python("-m", "venv", "--without-pip", str(folder))
    interpreter = folder / "bin" / "python"
    offline = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")
    python("-m", "pip", "--python", str(interpreter), "install", *offline, *map(str, wheels))
    site = python(
        "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", executable=interpreter
    )
    here = sysconfig.get_path("purelib")
    (Path(site.stdout.strip()) / "dependencies.pth").write_text(f"{here}\n", "utf-8")
    return folder / "bin"


def emberge(bin_: Path, *arguments: str, cwd: Path, **variables: str) -> str:
    """What the installed command prints, run where no source of emberge lies."""
    done = subprocess.run(
        [str(bin_ / "emberge"), *arguments],
        cwd=cwd,
        env=environment(HF_HUB_OFFLINE="1", **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
