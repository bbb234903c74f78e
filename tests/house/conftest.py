"""The built wheel, and fresh virtual environments to install it into."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.house.commands import python
from tests.house.sources import ROOT


def build_wheel(project: Path, into: Path) -> Path:
    """Build a project's wheel with what is installed here, so that no network is needed."""
    arguments = ("--wheel", "--no-isolation", "--outdir", str(into), str(project))
    python("-m", "build", *arguments)
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of emberge, built from this checkout."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


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
