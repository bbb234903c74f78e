"""Specialists of text, vision and audio that can be composed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.specialists import change_config, write_specialists


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny specialists with a bidirectional text model; do not write into them."""
    root = write_specialists(tmp_path_factory.mktemp("models"))
    change_config(root / "text", is_causal=False)
    return root


@pytest.fixture
def place(models: Path, tmp_path: Path) -> Path:
    """A copy of the specialists to write into."""
    return Path(shutil.copytree(models, tmp_path / "place"))
