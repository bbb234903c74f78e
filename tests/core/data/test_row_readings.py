"""Rows part by part: texts, labels and scores; and what a file decides."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError
from emberge.data.columns import LayoutError
from emberge.data.file_summary import FileSummary, decide_data, parse_rows
from emberge.data.row_parser import Row, RowError, RowParser
from PIL import Image

PNG = io.BytesIO()
Image.new("RGB", (3, 2)).save(PNG, "PNG")


def parsed(*rows: Mapping[str, Any], columns: Columns | None = None, task: Any = None) -> list[Row]:
    parser = RowParser(columns or Columns(), task)
    return [parser(row) for row in rows]


def refusal(*rows: Mapping[str, Any], **options: Any) -> str:
    """The reason why the last of the rows cannot be used."""
    parser = RowParser(options.get("columns", Columns()), options.get("task"))
    for row in rows[:-1]:
        parser(row)
    with pytest.raises(RowError) as caught:
        parser(rows[-1])
    return str(caught.value)


def test_a_row_has_all_its_parts() -> None:
    row = {
        "query": "q",
        "pos": ["a", "b"],
        "neg": ("c",),
        "pos_scores": [1, 0.5],
        "neg_scores": ["0.25"],
        "label": 3,
    }
    assert parsed(row) == [Row("q", ("a", "b"), ("c",), (1.0, 0.5), (0.25,), "3")]


def test_one_column_of_scores_is_of_positives_or_of_all_texts() -> None:
    row = {"query": "q", "pos": ["a", "b"], "neg": ["c"]}
    assert parsed({**row, "score": [1, 2]})[0][3:5] == ((1.0, 2.0), None)
    assert parsed({**row, "score": [1, 2, 3]})[0][3:5] == ((1.0, 2.0), (3.0,))
    assert parsed({**row, "score": None})[0][3:5] == (None, None)
    assert parsed({"query": "q", "pos": "a", "score": "1e-1"})[0].positive_scores == (0.1,)
    for scores in ([1], [1, 2, 3, 4], []):
        message = refusal({**row, "score": scores})
        assert f"has {len(scores)} scores for 2 positives and 1 negatives" in message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"pos_scores": 1}, "'pos_scores' must be a list of numbers, not a number"),
        ({"pos_scores": [1, 2]}, "'pos_scores' has 2 scores for 1 positives"),
        ({"pos_scores": ["x"]}, "'pos_scores' must be a number, not 'x'"),
        ({"pos_scores": [float("inf")]}, "'pos_scores' is inf; give a finite number"),
        ({"label": 1.5}, "'label' must be a word or a whole number, not a number"),
        ({"label": ""}, "'label' is empty"),
        ({"query": "a", "pos": []}, "'pos' is empty"),
        ({"pos": ["a", "b", ""]}, r"'pos[2]' is empty"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(row: Mapping[str, Any], words: str) -> None:
    assert words in refusal({"query": "q", "pos": ["a"], "neg": ["b"], **row})


def test_rows_of_a_text_and_a_label_need_both() -> None:
    good = {"text": "a", "label": "x"}
    assert parsed(good) == [Row("a", label="x")]
    alone = {"sentence": "a", "label": "x"}
    assert parsed(alone, {**alone, "positive": "b"})[1] == Row("a", label="x")
    assert "'label' is empty; give the row a label" in refusal(good, {"text": "a", "label": None})
    assert "column 'label' is missing (columns: text)" in refusal(good, {"text": "a"})
    assert "column 'text' is missing (columns: label)" in refusal(good, {"label": "a"})
    assert parsed(good, {**good, "id": 5})[1] == Row("a", label="x")


def test_rows_of_pairs_may_have_other_columns_beside() -> None:
    good = {"query": "q", "pos": "a"}
    rows = parsed(good, {**good, "neg": "b"}, {**good, "label": "x"}, {"id": 1, **good})
    assert rows[1:] == [Row("q", ("a",), ("b",)), Row("q", ("a",), label="x"), Row("q", ("a",))]
    assert "column 'pos' is missing" in refusal(good, {"query": "q"})
    assert "could both be the negative" in refusal(good, {**good, "neg": "b", "negative": "c"})
    assert "column 'text' is missing" in refusal({"text": "a"}, {"query": "b"})
    assert parsed({"text": "a"}, {"text": "b", "query": 5}) == [Row("a"), Row("b")]


def test_a_degree_is_between_0_and_1_and_other_columns_unknown() -> None:
    row = {"sentence1": "a", "sentence2": "b"}
    assert [r.positive_scores for r in parsed({**row, "label": 0}, {**row, "label": 1})] == [
        (0,),
        (1,),
    ]
    for label in (-0.1, 1.1, 2):
        message = refusal({**row, "label": 1}, {**row, "label": label})
        assert f"'label' is {label}, neither 0 or 1 nor between" in message
        assert "columns: {anchor: sentence1, positive: sentence2, score: label}" in message
    with pytest.raises(LayoutError, match="among a, b"):
        parsed({"a": 1, "b": 2})


def test_the_mark_of_media_is_no_part_of_a_text() -> None:
    assert parsed({"query": "a\ufffcb", "pos": "c"})[0].anchor == "a\ufffdb"


def summed(*rows: Mapping[str, Any], **options: Any) -> tuple[FileSummary, list[Row]]:
    summary = FileSummary("a.jsonl")
    entry = DataEntry(**options)
    return summary, [row for _, row in parse_rows(enumerate(rows, 1), entry, summary)]


def decided(*rows: Mapping[str, Any], **options: Any) -> Any:
    summary, _ = summed(*rows, **options)
    return decide_data(summary, DataEntry(**options))


def pair(**more: Any) -> dict[str, Any]:
    return {"query": "q", "pos": "a", **more}


def test_rows_are_counted_by_what_they_have() -> None:
    summary, rows = summed(
        pair(score=0.5), pair(score=0.25, neg="b"), {"bad": 1}, pair(score=1, neg="c")
    )
    assert len(rows) == summary.rows == 3
    assert (summary.rows_with_negatives, summary.scored_rows, summary.rows_with_label) == (2, 3, 0)
    assert (summary.lowest, summary.highest, summary.zero_or_one) == (0.25, 1.0, False)
    assert summary.first_lines == {"without a label": 1, "with scores": 1}
    assert summary.line_by_pair_kind == {"text-text": 1}
    assert [problem.where for problem in summary.bad_rows.list_problems(summary.place)] == [
        "a.jsonl:3"
    ]
    assert summary.build_media_facts() is None
    assert FileSummary(**summary.plain()) == summary


def test_the_task_is_that_of_the_rows() -> None:
    assert decided(pair()).task == "retrieval"
    assert decided(pair(score=0.5)).task == "sts"
    assert decided(pair(score=0), pair(score=1)).task == "pair_classification"
    assert decided(pair(score=0.5, neg="b")).task == "retrieval"
    assert decided(pair(label="x")).task == "classification"
    assert decided({"text": "a"}).task == "text"
    assert decided(pair(score=0.5), task="reranking").task == "reranking"


def test_sides_are_alike_but_in_search_and_scores_on_the_scale() -> None:
    assert [decided(pair(), task=task).symmetric for task in ("retrieval", "reranking")] == [
        False
    ] * 2
    assert decided(pair(), task="clustering").symmetric is True
    assert decided(pair(), symmetric=True).symmetric is True
    assert decided(pair(score=0.5), symmetric=False).symmetric is False
    found = decided(pair(score=[1.0, 0.0], neg=["b"]), score_range=(0.0, 2.0))
    example = found.build_example(parsed(pair(score=[1.0, 0.0], neg=["b"]))[0])
    assert (example.positive_scores, example.negative_scores) == ((0.5,), (0.0,))
    assert decided(pair()).build_example(Row("q", ("a",))).positive_scores is None


def test_the_scale_is_given_or_safe_to_guess() -> None:
    assert decided(pair(score=0.5), pair(score=1), pair(score=0)).score_range == (0.0, 1.0)
    found = decided(pair(score=0), pair(score=5), task="sts")
    assert (found.score_range, found.notes) == ((0.0, 5.0), ())
    found = decided(pair(score=1), pair(score=4))
    assert found.score_range == (0.0, 5.0)
    assert "scores run from 1 to 4" in found.notes[0]
    assert found.scale_score(2.5) == 0.5
    found = decided(pair(score=-3), score_range=(-5.0, 5.0))
    assert (found.score_range, found.scale_score(0.0)) == ((-5.0, 5.0), 0.5)
    for scores, options in (
        ((-0.1, 1), {}),
        ((0, 5.1), {}),
        ((0, 2), {"task": "pair_classification"}),
    ):
        said = rf"from {scores[0]} to {scores[1]}.*their scale is not given"
        with pytest.raises(DataError, match=said):
            decided(*(pair(score=score) for score in scores), **options)
    for score in (0.0, 5.0):
        assert summed(pair(score=score), score_range=(0.0, 5.0))[0].rows == 1
    for score in (-0.1, 5.1):
        summary, _ = summed(pair(score=score), score_range=(0.0, 5.0))
        assert (
            "lies outside score_range 0 to 5"
            in summary.bad_rows.list_problems(summary.place)[0].message
        )


def test_rows_agree_or_are_named() -> None:
    for rows, words in (
        ((pair(label="x"), pair()), r"a\.jsonl:2: this row has no label and line 1 has"),
        ((pair(), pair(score=1)), r"a\.jsonl:1: this row has no scores and line 2 has"),
    ):
        with pytest.raises(DataError, match=words):
            decided(*rows)
    with pytest.raises(DataError, match="there are no rows"):
        decided()
    with pytest.raises(DataError, match="task sts needs a score for every pair"):
        decided(pair(), pair(neg="b"), task="sts")
    assert decided(pair(neg="b"), task="sts").task == "sts"
