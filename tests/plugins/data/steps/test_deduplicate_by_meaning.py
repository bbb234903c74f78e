"""Rows that a teacher cannot tell apart are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataRef, ModelRef
from emberge.cli.main import main
from emberge_data.steps.deduplicate.cosine_copies import JoinedVectors, pairs_above
from emberge_data.steps.deduplicate.deduplicate_step import Deduplicate
from emberge_data.steps.teacher import Teacher

from tests.plugins.data.steps.steps import written
from tests.support.bench import BACKBONE
from tests.support.glance import Glance


def pair(anchor: str, positive: str) -> dict[str, Any]:
    return {"query": anchor, "pos": [positive]}


def left(
    tmp_path: Path, bert: Path, rows: list[dict[str, Any]], column: str = "query", **options: Any
) -> list[str]:
    """The anchors that a recipe's step leaves."""
    path = written(tmp_path / "rows.jsonl", rows)
    step = {"data": str(path), "teacher": str(bert), "cosine": 0.99999, **options}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"steps": {"unique": {"deduplicate": step}}}))
    assert main(["run", str(recipe), "--out", str(tmp_path / "out")]) == 0
    files = sorted((tmp_path / "out" / "unique").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [json.loads(line)[column] for line in lines]


# Symbols that the tiny tokenizer does not know are one token, so the texts have one vector.
ROWS = [
    pair("the ☃ list", "of the table"),
    pair("the ☂ list", "of the table"),
    pair("the ♞ list", "list of a list"),
    pair("a table", "of the table"),
]


def test_rows_of_one_vector_are_one_if_their_positives_are(tmp_path: Path, bert: Path) -> None:
    assert left(tmp_path, bert, ROWS) == ["the ☃ list", "the ♞ list", "a table"]


def test_anchors_of_one_vector_are_one(tmp_path: Path, bert: Path) -> None:
    assert left(tmp_path, bert, ROWS, of="anchors") == ["the ☃ list", "a table"]


def test_rows_of_one_vector_and_two_labels_are_two(tmp_path: Path, bert: Path) -> None:
    labels = {"the ☃ list": "a", "the ☂ list": "b", "the ♞ list": "a", "the ♖ list": "b"}
    rows = [{"text": text, "label": label} for text, label in labels.items()]
    rows += [{"text": text, "label": label} for text, label in (("a table", "a"), ("a file", "b"))]
    assert left(tmp_path, bert, rows, column="text") == [
        *("the ☃ list", "the ☂ list"),
        *("a table", "a file"),
    ]


@pytest.mark.parametrize("across", [True, False])
def test_rows_of_one_vector_in_two_sets_are_compared_as_asked(
    tmp_path: Path, bert: Path, across: bool
) -> None:
    for name, anchor in (("one", "the ☃ list"), ("two", "the ☂ list")):
        written(tmp_path / f"{name}.jsonl", [pair(anchor, "of the table"), pair(name, "a list")])
    data = [str(tmp_path / f"{name}.jsonl") for name in ("one", "two")]
    found = left(tmp_path, bert, [], data=data, across=across)
    assert ("the ☂ list" in found) == (not across)
    assert "the ☃ list" in found


@pytest.mark.parametrize("threshold", [0.2, 0.6, 1.0])
def test_the_pairs_are_those_of_brute_force(threshold: float) -> None:
    draw = np.random.default_rng(0)
    base = draw.standard_normal((40, 16))
    rows = (base[draw.integers(0, 40, 1500)] + 0.7 * draw.standard_normal((1500, 16))).astype(
        np.float32
    )
    rows[700] = rows[3]
    parts = draw.integers(0, 2, 1500)
    places = np.where(parts == 0, np.cumsum(parts == 0), np.cumsum(parts == 1)) - 1
    joined = JoinedVectors([rows[parts == 0], rows[parts == 1]], parts, places)
    wide = rows.astype(np.float64)
    lengths = np.sqrt((wide**2).sum(axis=1))
    cosines = wide @ wide.T / np.outer(lengths, lengths)
    found = set(pairs_above(joined, threshold))
    # A sum of 16 float64 products is off by far less than this, in whatever order it is made.
    sure = np.argwhere(np.tril(cosines >= threshold + 1e-12, -1)).tolist()
    maybe = np.argwhere(np.tril(cosines >= threshold - 1e-12, -1)).tolist()
    assert set(map(tuple, sure)) <= found <= set(map(tuple, maybe))
    assert (700, 3) in found


def test_a_teacher_that_would_compare_texts_is_refused_before_work_starts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [pair("q", "p")])
    teacher = Teacher(model=ModelRef("$encoder"), backbone=BACKBONE)
    step = Deduplicate(data=(DataEntry(path=DataRef(str(path))),), teacher=teacher, of="texts")
    (problem,) = step.check(Glance())
    assert problem.where == "of"
    assert "rows or anchors" in problem.message
