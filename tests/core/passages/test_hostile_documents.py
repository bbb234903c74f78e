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
        ("a.md", "- a\n"),
        ("a.html", '<a href="'),
        ("a.html", "<!--"),
        ("a.html", "<![x y]]>"),
        ("a.html", "<li>a"),
        ("a.html", "<title>a<b>"),
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"---\ntitle: a{' ' * LENGTH}b\n---\nText."),
        ("a.html", f"Text. {'<nav>' * (LENGTH // 5)}{'</svg>' * (LENGTH // 5)}"),
    ],
)
def test_marks_in_two_runs_take_no_time_without_an_end(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    began = time.process_time()
    (document,) = read_documents(tmp_path, ()).documents
    assert document.sections[0].text == "Text."
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "code",
    [f"x = {'-' * 20_000}1\n", "if a:\n    pass\n" + "elif b:\n    pass\n" * 1500],
    ids=["signs", "branches"],
)
def test_code_that_is_nested_too_deeply_is_left_out(code: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f'"""Text."""\n{code}')
    (tmp_path / "b.txt").write_text("Text.")
    reading = read_documents(tmp_path, ())
    assert [document.name for document in reading.documents] == ["b.txt"]
    assert "a.py" in reading.warnings[0]
