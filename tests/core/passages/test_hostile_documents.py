"""Documents that a stranger wrote to keep a reader busy are read in time that grows with their length."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from emberge.passages import PassageSize, cut_document, read_documents

LENGTH = 200_000
SECONDS = 30  # many times what they take


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("a.md", "!["),
        ("a.md", "<!--"),
        ("a.md", "*a "),
        ("a.html", '<a href="'),
        ("a.html", "<!--"),
        ("a.html", "<![x y]]>"),
        ("a.rst", "*a "),
        ("a.rst", ":a"),
        ("a.rst", "`a <"),
        ("a.txt", "."),
        ("a.txt", "A. "),
    ],
)
def test_marks_without_an_end_take_no_time_without_an_end(
    name: str, piece: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("Text. " + piece * (LENGTH // len(piece)))
    began = time.process_time()
    (document,) = read_documents(tmp_path, ()).documents
    assert cut_document(document, PassageSize())
    assert time.process_time() - began < SECONDS
