"""Models that every part of a training is tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.json_files import edit


@pytest.fixture(scope="session")
def shaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout, so that random numbers matter; do not write into it."""
    folder = tiny.checkpoint(tmp_path_factory.mktemp("shaky") / "m")
    edit(folder, "config.json", hidden_dropout_prob=0.1)
    return folder
