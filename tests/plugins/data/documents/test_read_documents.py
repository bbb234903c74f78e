"""Documents of a stranger's folder: each kind by its headings, and what is left out is said and counted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from emberge import DataError
from emberge_data import JsonLines, cut_document, read_documents
from emberge_data.documents import cutting
from emberge_data.documents.cutting import TextPassage, count_words, measure_text, split_sentences
from emberge_data.documents.document_files import DocumentReading
from emberge_data.documents.source_document import SourceDocument, SourceSection

READERS = (JsonLines(),)


def read(path: Path, first: int | None = None) -> DocumentReading:
    return read_documents(path, READERS, first=first)


def only(path: Path, text: str) -> SourceDocument:
    path.write_text(text, "utf-8")
    (document,) = read(path).documents
    return document


def outline(document: SourceDocument) -> list[tuple[tuple[str, ...], str]]:
    return [(section.headings, section.text) for section in document.sections]


def test_markdown_has_a_section_for_each_heading_and_no_markup(tmp_path: Path) -> None:
    page = only(
        tmp_path / "guide.md",
        "---\nauthor: me\n---\n# The guide\n\nIt is *short*.\n\n## Set-up\n\nRun `make`.\n\n"
        "```\n# no heading\n```\n\n### Windows\n\n- one\n- two\n\n"
        "## Use\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    )
    assert page.title == "The guide"
    assert outline(page) == [
        ((), "It is short."),
        (("Set-up",), "Run make.\n\n# no heading"),
        (("Set-up", "Windows"), "- one\n- two"),
        (("Use",), "a | b\n1 | 2"),
    ]
    page = only(tmp_path / "a.md", "# A\n\nSee [how to *install*](sub/b.md#install-it) first.\n")
    assert page.sections[0].text == "See how to install first."


def test_a_web_page_is_read_without_menus_and_scripts(tmp_path: Path) -> None:
    page = only(
        tmp_path / "a.html",
        "<title>Site: page</title><nav>menu</nav><script>x()</script><h1>Page</h1><p>One &amp;\n two."
        "<ul><li>item</ul><h2 id=deep>Deep</h2><pre>a\n  b</pre><a href='b.html'>to b</a>",
    )
    assert page.title == "Page"
    assert outline(page) == [((), "One & two.\n- item"), (("Deep",), "a\n  b\n\nto b")]
    page = only(tmp_path / "a.html", "<nav>a<nav>b</nav><p>c</nav><p>Text.")
    assert outline(page) == [((), "Text.")]


def test_python_has_a_section_for_each_definition_with_its_docstring(tmp_path: Path) -> None:
    code = (
        '"""Tools.\n\nMore."""\nclass A:\n    """An A."""\n    x = 1\n'
        '    def f(self):\n        """Do it.\n\n        Slowly.\n        """\n        return 1\n'
    )
    page = only(tmp_path / "tools.py", code)
    assert page.title == "tools"
    assert [(s.headings, s.summary) for s in page.sections] == [
        ((), "Tools."),
        (("A",), "An A."),
        (("A", "f"), "Do it."),
    ]
    assert page.sections[1].text == 'class A:\n    """An A."""\n    x = 1'
    assert page.sections[2].text.endswith("return 1")


def test_plain_text_takes_a_short_first_line_as_title(tmp_path: Path) -> None:
    assert only(tmp_path / "a.txt", "Rules of play\n\nRoll. Move.\n").title == "Rules of play"
    assert only(tmp_path / "house_rules.txt", "No title here.\n\nText.").title == "house rules"


@pytest.mark.parametrize(
    ("name", "title"),
    [("leave-policy", "leave policy"), ("休假", "休假"), ("d103", ""), ("ab_12", "")],
)
def test_a_name_without_a_word_is_no_title(tmp_path: Path, name: str, title: str) -> None:
    assert only(tmp_path / f"{name}.md", "Text of a page.").title == title


def test_rows_of_a_beir_corpus_are_documents(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "x", "title": "T", "text": "One."}\n{"_id": 2, "text": "Two."}\n'
    )
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "no document"}\n')
    assert [(d.name, d.title, outline(d)) for d in read(tmp_path).documents] == [
        ("x", "T", [((), "One.")]),
        ("2", "", [((), "Two.")]),
    ]


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (['{"id": "a", "text": "x"}', '{"id": "a", "text": "y"}'], ":2"),
        (['{"id": "a", "text": '], ":1"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, lines: Sequence[str], place: str) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"rows.jsonl{place}"):
        read(tmp_path / "rows.jsonl")


def test_files_that_cannot_be_used_are_counted_by_the_reason(tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("A secret.")
    folder = tmp_path / "docs"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "hidden.txt").write_text("Hidden.")
    (folder / "good.txt").write_text("Good text.")
    (folder / "latin.txt").write_bytes("Stra\xdfe".encode("latin-1"))
    (folder / "binary.txt").write_bytes(b"a\x00b")
    (folder / "empty.md").write_text("# Only a heading\n")
    (folder / "image.png").write_bytes(b"png")
    (folder / "link.txt").symlink_to(outside)
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.txt")
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(257 << 20)
    found = read(folder)
    assert [document.name for document in found.documents] == ["good.txt"]
    assert read(folder, first=1).documents == found.documents
    reasons = "\n".join(found.warnings)
    for word, name in (
        ("UTF-8", "latin.txt"),
        ("binary", "binary.txt"),
        ("without text", "empty.md"),
        ("another kind", "image.png"),
        ("larger", "huge.txt"),
        ("regular", "pipe.txt"),
    ):
        assert any(word in line and name in line for line in found.warnings), (word, reasons)
    (links,) = [line for line in found.warnings if "link" in line and "out of the folder" in line]
    assert links.startswith("2 files")
    assert "secret" not in reasons


LENGTH = 100_000


@pytest.mark.parametrize(
    ("name", "piece"),
    [("a.md", "*a "), ("a.html", "<![x y]]>"), ("a.html", "<title>a<b>"), ("a.txt", "A. ")],
)
def test_many_marks_without_end_are_read_to_the_end(name: str, piece: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("Text. " + piece * (LENGTH // len(piece)))
    (document,) = read_documents(tmp_path, ()).documents
    assert cut_document(document)


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


@pytest.fixture
def small_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MOST_WORDS", 10)
    monkeypatch.setattr(cutting, "MOST_CHARACTERS", 60)


def cut(*texts: str, name: str = "a.md") -> list[TextPassage]:
    sections = tuple(
        SourceSection((f"Part {number}",), text) for number, text in enumerate(texts, 1)
    )
    return cut_document(SourceDocument(name, "Title", sections))


def test_each_section_begins_a_passage_which_alone_has_the_documents_name() -> None:
    first, second = cut("One two.", "Three.")
    assert (first.id, first.context, first.text) == ("a.md#1", "Title - Part 1", "One two.")
    assert second.full_text == "Title - Part 2 Three."
    assert (second.section, second.is_first) == (1, True)
    assert [passage.id for passage in cut("One.")] == ["a.md"]
    assert [passage.id for passage in cut("One.", name="c#")] == ["c##1"]


@pytest.mark.usefixtures("small_passages")
def test_long_sections_are_cut_between_sentences_into_like_parts() -> None:
    passages = cut("One two three. " * 4)
    assert [passage.text for passage in passages] == ["One two three. One two three."] * 2
    assert [passage.is_first for passage in passages] == [True, False]


@pytest.mark.usefixtures("small_passages")
@pytest.mark.parametrize(
    "text",
    [
        "word " * 95,
        "x" * 500,
        "字" * 130 + "。" + "字" * 20,
        "a\n" * 300,
        "short.\n\n" + "w" * 61 + " end " + "v" * 200,
    ],
)
def test_no_passage_is_above_the_size_and_no_character_is_lost(text: str) -> None:
    passages = cut(text)
    assert all(measure_text(passage.text) <= 1 for passage in passages)
    assert "".join("".join(passage.text.split()) for passage in passages) == "".join(text.split())


def test_sentences_end_at_marks_and_words_have_none() -> None:
    assert split_sentences("See e.g. Fig. 3 by J. Doe. It works! 是的。好。") == [
        "See e.g. Fig. 3 by J. Doe.",
        "It works!",
        "是的。",
        "好。",
    ]
    assert count_words(["It's – well, 2 words?", "yes"]) == 5
