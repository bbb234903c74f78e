"""Columns: every usual name that is known, and what is ambiguous."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest
from emberge import Columns
from emberge.data.columns import (
    NEGATIVE_NAMES,
    ColumnLayout,
    LayoutError,
    find_layout,
    find_media_kind,
)


def test_every_pair_of_usual_names_is_a_pair() -> None:
    anchors = (
        "query anchor question sentence sentence1 sentence_1 sentence_a premise text1 question1"
    )
    positives = (
        "pos positive positives answer document passage hypothesis code sentence2 sentence_2"
    )
    positives += " sentence_b text2 question2"
    for anchor, positive in product(anchors.split(), positives.split()):
        found = find_layout([positive, "id", anchor], Columns())
        assert found == ColumnLayout(anchor, (positive,))


@pytest.mark.parametrize("negative", NEGATIVE_NAMES)
def test_every_usual_name_of_negatives_is_known(negative: str) -> None:
    assert find_layout(["query", "pos", negative], Columns()).negatives == (negative,)
    numbered = [f"{negative}_2", f"{negative}_10", f"{negative}1"]
    found = find_layout(["query", "pos", *numbered], Columns())
    assert found.negatives == (f"{negative}1", f"{negative}_2", f"{negative}_10")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((name, "score") for name in ("score", "scores", "similarity_score")),
        *((name, "label") for name in ("label", "labels", "category")),
        *((name, "positive_scores") for name in ("pos_scores", "positive_scores")),
        *((name, "negative_scores") for name in ("neg_scores", "negative_scores")),
    ],
)
def test_every_usual_name_beside_a_pair_is_known(name: str, part: str) -> None:
    found = find_layout(["query", "pos", name], Columns())
    assert found == dataclasses.replace(ColumnLayout("query", ("pos",)), **{part: name})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["text", "sentence", "query", "utterance"])
def test_every_usual_name_of_a_text_is_known(name: str) -> None:
    assert find_layout([name], Columns()) == ColumnLayout(name, is_single=True)
    assert find_layout([name, "id"], Columns(), "text") == ColumnLayout(name, is_single=True)
    for label in ("label", "labels", "category"):
        assert find_layout([name, label], Columns()) == ColumnLayout(name, label=label)


@pytest.mark.parametrize("name", ["image", "images", "image_path", "image_file"])
def test_every_usual_name_of_an_image_is_known(name: str) -> None:
    assert find_media_kind(name) == "image"
    for caption in ("caption", "captions", "text", "transcription", "transcript", "description"):
        assert find_layout([caption, name], Columns()) == ColumnLayout(name, (caption,))
    assert find_layout([name, "query"], Columns()) == ColumnLayout("query", (name,))
    assert find_layout([name, "pos"], Columns()) == ColumnLayout(name, ("pos",))
    assert find_layout([name, "label"], Columns()) == ColumnLayout(name, label="label")
    assert find_layout([name, "text", "label"], Columns()).anchor == "text"


def test_every_usual_name_of_a_clip_is_known() -> None:
    for name in ("audio", "audio_path", "audio_file", "AUDIO"):
        assert find_media_kind(name) == "audio"


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (["QUESTION", "Answer"], ColumnLayout("QUESTION", ("Answer",))),
        (
            ["Query", " POSITIVE", "Negative 1"],
            ColumnLayout("Query", (" POSITIVE",), ("Negative 1",)),
        ),
        (["Text", "Label"], ColumnLayout("Text", label="Label")),
        (
            ["Sentence1", "SENTENCE2", "Label"],
            ColumnLayout("Sentence1", ("SENTENCE2",), score="Label", unit_score=True),
        ),
        (["query", "Query", "pos"], ColumnLayout("query", ("pos",))),
        (["TEXT"], ColumnLayout("TEXT", is_single=True)),
    ],
)
def test_headings_are_read_in_any_case(names: list[str], layout: ColumnLayout) -> None:
    assert find_layout(names, Columns()) == layout


def test_a_degree_beside_two_sentences_is_a_unit_score() -> None:
    for one in ("sentence1", "sentence_1", "sentence_a", "text1", "question1"):
        for other in ("sentence2", "sentence_2", "sentence_b", "text2", "question2"):
            found = find_layout([one, other, "label"], Columns())
            assert found == ColumnLayout(one, (other,), score="label", unit_score=True)
    assert find_layout(["query", "pos", "label"], Columns()).label == "label"
    both = find_layout(["sentence1", "sentence2", "label", "score"], Columns())
    assert (both.score, both.label, both.unit_score) == ("score", "label", False)


def test_columns_that_are_named_or_alone_are_read() -> None:
    names = ["a", "b", "neg", "score", "label"]
    assert find_layout(names, Columns(anchor="a", positive="b")) == ColumnLayout("a", ("b",))
    given = Columns(anchor="a", positive="b", negative="neg", score="score", label="label")
    layout = ColumnLayout("a", ("b",), ("neg",), score="score", label="label")
    assert find_layout(names, given) == layout
    assert (
        layout.describe()
        == "anchor = a, positive = b, negative = neg, score = score, label = label"
    )
    numbered = find_layout(["a", "p_1", "p_2"], Columns(anchor="a", positive="p"))
    assert numbered.positives == ("p_1", "p_2")
    assert find_layout(["body"], Columns(), "text").anchor == "body"
    assert find_layout(["body", "id"], Columns(anchor="body"), "text").describe() == "text = body"
    for names in (["body", "id"], []):
        with pytest.raises(LayoutError, match=r"no column for the text.*columns: \{anchor: …"):
            find_layout(names, Columns(), "text")


@pytest.mark.parametrize(
    ("names", "columns", "words"),
    [
        (["query", "question", "pos"], Columns(), "query and question could both be the anchor"),
        (["query", "pos", "answer"], Columns(), "pos and answer could both be the positive"),
        (["image", "audio"], Columns(), "could both be the medium"),
        (["a", "b"], Columns(), "no column for the anchor"),
        (["query", "score", "label"], Columns(), "no column for the positive"),
        (
            ["a" * 90, "b"],
            Columns(),
            r"among a{49}…, b \(the first line seems to be data: add a head",
        ),
        (["query", "b"], Columns(anchor="query"), r"for the positive \(anchor is 'query'\)"),
        (["query", "b"], Columns(positive="c"), "positive names 'c', which is not there"),
        (["premise", "hypothesis", "label"], Columns(), "may be a class or a score"),
        (["query", "b"], Columns(anchor="qeury"), "names 'qeury', .*; did you mean 'query'"),
    ],
)
def test_ambiguous_columns_are_named(names: list[str], columns: Columns, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        find_layout(names, columns)
