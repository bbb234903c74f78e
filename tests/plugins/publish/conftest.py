"""Fixtures of this folder: a hub to publish on, and merges with licences, each made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import publishing
from tests.support.publishing import Merged, hub

__all__ = ["hub", "merged"]


@pytest.fixture(scope="session")
def kept_merges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merges")


@pytest.fixture
def merged(
    berts: list[Path], kept_merges: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Merged:
    """Merge two models whose cards are given, and return the result's folder; parents are beside it."""

    def merge(*cards: str | None) -> Path:
        kept = kept_merges / f"{hash(cards)}"
        if not kept.exists():
            kept.mkdir()
            publishing.merge_with_cards(berts, kept, cards, monkeypatch)
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True, symlinks=True)
        monkeypatch.chdir(tmp_path)
        return tmp_path / "soup"

    return merge
