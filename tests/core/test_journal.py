"""A journal of finished work: what a kill or another piece of work leaves in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge.merging import journal
from emberge.merging.journal import Journal


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every name written as soon as it is marked."""
    monkeypatch.setattr(journal, "_INTERVAL", 0.0)


def marked(folder: Path, *names: str, key: str = "work") -> Journal:
    """A journal that was opened and in which names were marked."""
    opened = Journal(folder, key)
    for name in names:
        opened.mark(name, lambda: None)
    return opened


def test_what_was_marked_is_done_when_work_goes_on(tmp_path: Path) -> None:
    marked(tmp_path, "a", "b")
    assert marked(tmp_path, "c").done == {"a", "b"}
    assert Journal(tmp_path, "work").done == {"a", "b", "c"}


@pytest.mark.parametrize("torn", ['{"done": "c', '{"done": "c"}', "{"])
def test_after_a_torn_last_line_new_ones_are_read_again(tmp_path: Path, torn: str) -> None:
    """A name counts with the end of its line; what is torn must not spoil the line that comes after it."""
    path = marked(tmp_path, "a", "b").path
    with path.open("a") as file:
        file.write(torn)
    assert marked(tmp_path, "d").done == {"a", "b"}
    assert Journal(tmp_path, "work").done == {"a", "b", "d"}
