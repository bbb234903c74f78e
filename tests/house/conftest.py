"""The built wheel, and fresh virtual environments to install it into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import build_wheel
from tests.support.sources import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of emberge, built from this checkout."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))
