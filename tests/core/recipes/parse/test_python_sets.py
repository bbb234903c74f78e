"""Retrieval sets that Python code gives as three dicts are read again as they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, RecipeError
from emberge.recipes.parse.python_data import to_yaml_data
from emberge_data import JsonLines, RetrievalData, load_eval_set, pick_eval_sets

READERS = [JsonLines()]


def write_python_set(queries: Any, corpus: Any, relevant: Any, folder: Path) -> Path:
    given = {"queries": queries, "corpus": corpus, "relevant": relevant}
    return Path(to_yaml_data(given, "recipe", folder)["path"])


QUERIES = {"q1": "Who rules?", 2: "Who serves?"}


CORPUS = {"d1": "The king", "d2": {"title": "Court", "text": "The page"}, "d3": "A tree"}


RELEVANT = {"q1": {"d1", "d3"}, "2": ["d2"]}


def load(folder: Path) -> Any:
    (eval_set,) = pick_eval_sets(folder, readers=READERS)
    return load_eval_set(eval_set, readers=READERS)


def test_dicts_and_grades_are_read_again_as_they_were(tmp_path: Path) -> None:
    folder = write_python_set(QUERIES, CORPUS, RELEVANT, tmp_path)
    assert load(folder) == RetrievalData(
        corpus={"d1": "The king", "d2": "Court The page", "d3": "A tree"},
        queries={"q1": "Who rules?", "2": "Who serves?"},
        relevant={"q1": {"d1": 1, "d3": 1}, "2": {"d2": 1}},
    )
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
        ({"relevant": {**RELEVANT, "q9": {"d1"}}}, "there is no query 'q9'"),
        ({"relevant": {**RELEVANT, "q1": "d1"}}, "relevant: 'q1' needs a set or list of ids"),
        ({"relevant": {**RELEVANT, "q1": {"d1": 0.5}}}, "expected query, document and a whole"),
        ({"queries": {2: "Q", "2": "R"}}, "the id '2' was given before"),
        ({"corpus": {**CORPUS, "d1": None}}, "the row needs a text"),
    ],
)
def test_what_cannot_be_scored_is_named(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    given = {"queries": QUERIES, "corpus": CORPUS, "relevant": RELEVANT, **changes}
    with pytest.raises((DataError, RecipeError), match=fault):
        load(write_python_set(**given, folder=tmp_path))
