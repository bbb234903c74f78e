"""Retrieval sets given as three dicts: as sentence-transformers' evaluator takes them, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, RetrievalData
from emberge.data import load_eval_set, pick_eval_sets, write_python_set
from emberge_data import JsonLines

READERS = (JsonLines(),)
QUERIES = {"q1": "Who rules?", 2: "Who serves?"}
CORPUS = {"d1": "The king", "d2": {"title": "Court", "text": "The page"}, "d3": "A tree"}
RELEVANT = {"q1": {"d1", "d3"}, "2": ["d2"]}


def load(folder: Path) -> Any:
    (eval_set,) = pick_eval_sets(folder, readers=READERS)
    return load_eval_set(eval_set, readers=READERS)


def test_dicts_are_read_again_as_they_were(tmp_path: Path) -> None:
    folder = write_python_set(QUERIES, CORPUS, RELEVANT, tmp_path)
    assert load(folder) == RetrievalData(
        corpus={"d1": "The king", "d2": "Court The page", "d3": "A tree"},
        queries={"q1": "Who rules?", "2": "Who serves?"},
        relevant={"q1": {"d1": 1, "d3": 1}, "2": {"d2": 1}},
    )


def test_grades_are_kept(tmp_path: Path) -> None:
    relevant = {"q1": {"d1": 2, "d2": np.int64(1), "d3": 0}, 2: {"d2": 1}}
    folder = write_python_set(QUERIES, CORPUS, relevant, tmp_path)
    assert load(folder).relevant == {"q1": {"d1": 2, "d2": 1, "d3": 0}, "2": {"d2": 1}}


def test_the_folder_is_named_by_the_content(tmp_path: Path) -> None:
    first = write_python_set(QUERIES, CORPUS, RELEVANT, tmp_path)
    again = write_python_set(QUERIES, CORPUS, {"q1": {"d3", "d1"}, 2: ("d2",)}, tmp_path)
    other = write_python_set(QUERIES, {**CORPUS, "d3": "A bush"}, RELEVANT, tmp_path)
    assert first == again != other
    assert first.parent == other.parent == tmp_path
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"relevant": {"q1": {"d1"}}}, "queries: '2' has no relevant document; remove it"),
        ({"relevant": {**RELEVANT, 2: set()}}, "relevant: the id '2' is given as text and as a"),
        ({"relevant": {"q1": {"d1": 0}, 2: ["d2"]}}, "queries: 'q1' has no relevant document"),
        ({"relevant": {**RELEVANT, "q9": {"d1"}}}, "relevant: there is no query 'q9'"),
        (
            {"relevant": {**RELEVANT, "q1": {"d9"}}},
            "relevant: 'q1' names the document 'd9', and corpus has none",
        ),
        ({"relevant": {**RELEVANT, "q1": "d1"}}, "relevant: 'q1' needs a set or list of ids"),
        ({"relevant": {**RELEVANT, "q1": {"d1": 0.5}}}, "the grade of 'd1' is a whole number"),
        ({"queries": {}, "relevant": {}}, "queries: there is no query"),
        ({"queries": {**QUERIES, "q1": " "}}, "queries: 'q1': the text is empty"),
        ({"queries": {**QUERIES, "q1": 5}}, "queries: 'q1' needs a text, not int"),
        ({"queries": {1.5: "Q"}}, "queries: an id is text or a whole number, not 1.5"),
        ({"queries": {2: "Q", "2": "R"}}, "queries: the id '2' is given as text and as a number"),
        ({"corpus": {**CORPUS, "a\tb": "Tab"}}, "corpus: the id 'a\\tb' is empty or has a tab"),
        ({"corpus": {**CORPUS, "d1": None}}, "corpus: 'd1' needs a text, not NoneType"),
    ],
)
def test_what_cannot_be_judged_is_named(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    given = {"queries": QUERIES, "corpus": CORPUS, "relevant": RELEVANT, **changes}
    with pytest.raises(DataError) as caught:
        write_python_set(**given, folder=tmp_path)
    assert fault in str(caught.value)
    assert list(tmp_path.iterdir()) == []
