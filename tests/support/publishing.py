"""A hub to publish on, and merges whose parents state their licences."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from emberge.cli.main import main

from tests.support.loopback_hub import Hub, hub_at, serving

TOKEN = "hf_" + "Secret7" * 5


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub where the user is logged in and may write to what is `me`'s."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "hub").mkdir()
    with serving(tmp_path / "hub") as server, hub_at(server.url, tmp_path / "cache"):
        server.token = TOKEN
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


Merged = Callable[..., Path]


def merge_with_cards(
    berts: list[Path], folder: Path, cards: Sequence[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merge two models whose cards are given into `soup` in a folder; parents are beside it."""
    monkeypatch.chdir(folder)
    names = ("legal", "faq")
    for name, model, card in zip(names, berts, cards, strict=False):
        shutil.copytree(model, folder / name)
        if card is not None:
            (folder / name / "README.md").write_text(f"---\n{card}\n---\n# {name}\n")
    words = [f"./{name}" for name, _ in zip(names, cards, strict=False)]
    assert main(["merge", *words, "--strategy", "linear", "--out", "soup", "--quiet"]) == 0


@pytest.fixture(scope="session")
def kept_merges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merges")


@pytest.fixture
def merged(
    berts: list[Path], kept_merges: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Merged:
    """Merge two models whose cards are given, once, and return a copy of the result beside its parents."""

    def merge(*cards: str | None) -> Path:
        kept = kept_merges / f"{hash(cards)}"
        if not kept.exists():
            kept.mkdir()
            merge_with_cards(berts, kept, cards, monkeypatch)
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True, symlinks=True)
        monkeypatch.chdir(tmp_path)
        return tmp_path / "soup"

    return merge
