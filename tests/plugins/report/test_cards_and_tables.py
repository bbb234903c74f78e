"""Texts of strangers stay text in cards and tables, as a renderer of Markdown reads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact
from emberge.contracts import DataOrigin, MergeDetails
from emberge.wording import Markdown, format_markdown_table, make_printable_lines, to_markdown
from emberge_report import write_code_block, write_code_span
from emberge_report.card import CardFacts, draw_card
from emberge_report.lineage import Parent, TrainingSet
from emberge_report.markdown import write_link
from emberge_report.model_facts import Anatomy, read_anatomy
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.json_files import edit

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "![](https://evil.example/pixel.png)",
    "[free](javascript:alert(1))",
    "a | b | c",
    "a \\| b",
    "x\n\n# Title\n\n- item",
    "x\n```\n<b>out</b>\n```python",
    "````\n~~~\n",
    "`` ` ``",
    "---",
    "---\nlicense: mit\n---",
    "1. one",
    "- one",
    "*bold* _it_ **b** ~~gone~~",
    "&lt;b&gt; &#60;",
    "\\",
    "\x1b[2Jgone\x9b\u202e",
    "a\u2028b\x85c",
]
# How characters that steer are shown.
SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e]")


def parsed(text: str) -> list[Token]:
    """The tokens of a text, those inside of lines after their line."""
    found: list[Token] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        found += [token, *(token.children or ())]
    return found


def text_of(tokens: Sequence[Token]) -> str:
    plain = {"text", "text_special", "code_inline"}
    return "".join(token.content for token in tokens if token.type in plain)


def kinds(text: str) -> list[str]:
    return [token.type for token in parsed(text)]


def cells(text: str) -> list[list[str]]:
    """The texts of the cells of a text's one table."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append(text_of(token.children or []))
    return rows


def flat(text: str) -> str:
    return SHOWN.sub(lambda m: m[0].encode("unicode_escape").decode(), " ".join(text.split()))


def every(strategy: Any) -> Any:
    """A test on any text, and on each of the hostile ones."""

    def decorate(test: Any) -> Any:
        for text in HOSTILE:
            test = example(text)(test)
        return given(strategy)(test)

    return decorate


TEXT = st.text(st.sampled_from("ab1 |\\`*_{}[]()<>#+-.!&;~=:/\n\x1b\"'"), min_size=1, max_size=12)


@every(TEXT)
def test_prose_is_one_paragraph_that_reads_as_the_text(text: str) -> None:
    tokens = parsed(to_markdown(text))
    assert {t.type for t in tokens} <= {
        *("paragraph_open", "inline", "text", "text_special", "paragraph_close")
    }
    assert text_of(tokens) == flat(text)


@every(TEXT)
def test_a_cell_stays_one_cell_that_reads_as_the_text(text: str) -> None:
    lines = format_markdown_table(
        ["a", "b"], [[text, "next"], [write_code_span(text), Markdown("**us**")]]
    )
    assert len(lines) == 4
    (_, first, second) = cells("\n".join(lines))
    assert first == [flat(text), "next"]
    assert len(second) == 2
    assert second[1] == "us"
    assert second[0].strip() == flat(text).strip()


@every(TEXT)
def test_no_line_of_a_block_of_code_closes_it(text: str) -> None:
    tokens = parsed("\n".join([*write_code_block(text, "text"), "", "after"]))
    assert [t.type for t in tokens][:2] == ["fence", "paragraph_open"]
    assert tokens[0].content.rstrip("\n") == make_printable_lines(text).rstrip("\n")


@pytest.mark.parametrize(
    ("address", "leads"),
    [
        ("https://huggingface.co/a/b", True),
        ("https://huggingface.co/a/b/tree/x) [y](http://evil.example", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        (None, False),
    ],
)
def test_a_link_leads_to_one_web_page_or_nowhere(address: str | None, leads: bool) -> None:
    links = [t for t in parsed(write_link("a [b](c)", address)) if t.type == "link_open"]
    assert len(links) == leads
    if leads:
        assert str(links[0].attrs["href"]).startswith("https://huggingface.co/a/b")
    assert text_of(parsed(write_link("a [b](c)", address))) == "a [b](c)"


# ── cards ───────────────────────────────────────────────────────────────────────────────────────────


def card_of(word: str, **shape: Any) -> str:
    """A card in which every text of strangers is `word`."""
    shape = {"dimension": 8, "architecture": word, "pooling": (word,), **shape}
    parent = Parent(word, 0.5, word, "https://huggingface.co/a/b", word)
    return draw_card(
        CardFacts(
            name="soup",
            artifact=Artifact(
                "model",
                size=3,
                parents=(word,),
                warnings=(word,),
                details=MergeDetails(strategy=[{word: {"note": word}}], weights={}, dtype=word),
                origin="merged",
            ),
            anatomy=Anatomy(**shape),
            parents=(parent,),
            roots=(parent,),
            data=(trained(word),),
            record={"component": word, "fingerprint": word, "versions": {word: word}, "seed": word},
        )
    )


def trained(word: str) -> TrainingSet:
    origin = DataOrigin(licence=word, url=word, written_by=(word,), scored_by=(word,))
    return TrainingSet(word, word, 1, 2, origin)


def body_of(card: str) -> str:
    """The card after its front matter."""
    found = re.match(r"---\n.*?\n---\n", card, re.DOTALL)
    assert found is not None
    return card[found.end() :]


PLAIN = kinds(body_of(card_of("plain", prompts={"plain": "plain"})))


@pytest.mark.parametrize("word", HOSTILE)
def test_a_card_has_the_same_parts_whatever_its_texts_are(word: str) -> None:
    card = card_of(word, prompts={word: word})
    inside = {"text", "text_special", "code_inline", "html_inline"}
    parts = [kind for kind in kinds(body_of(card)) if kind not in inside]
    assert parts == [kind for kind in PLAIN if kind not in inside]
    raw = "".join(t.content for t in parsed(body_of(card)) if t.type == "html_inline")
    assert not re.sub(r"</?code>", "", raw)
    assert not SHOWN.search(card.replace("\n", ""))


@pytest.mark.parametrize("word", HOSTILE)
def test_a_prompts_name_stays_inside_the_snippet_and_its_string(word: str) -> None:
    (snippet, *_) = (t for t in parsed(card_of("plain", prompts={word: "x"})) if t.info == "python")
    names: list[str] = []

    class Model:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, prompt_name=None: names.append(prompt_name)

    lines = snippet.content.splitlines()
    scope: dict[str, Any] = {"SentenceTransformer": lambda _: Model()}
    exec("\n".join(lines[1:-1]), scope)
    assert names == [word]


def test_similarity_and_kinds_of_input_are_words_of_closed_lists(
    bert: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    for file, key, value in (
        ("config_sentence_transformers.json", "similarity_fn_name", HOSTILE[0]),
        ("sentence_bert_config.json", "modality_config", {"image": {}, HOSTILE[1]: {}}),
    ):
        edit(folder, file, **{key: value})
    found = read_anatomy(folder)
    assert found.similarity == "unknown"
    assert found.reads == ("image",)
