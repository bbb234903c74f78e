"""The built wheel, and memory of parsed files that ends with this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.project import forget_trees
from tests.support.installed import build_wheel
from tests.support.places import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of emberge, built from this checkout."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="package", autouse=True)
def trees() -> Iterator[None]:
    """The parsed files, which no other folder's tests need."""
    yield
    forget_trees()
