"""Fixture of all plugins' tests."""

from __future__ import annotations

import pytest
from emberge import Plugins, load_plugins


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    """Every installed plugin."""
    return load_plugins(block=())
