"""Sets that are too small to tell models apart: how they are counted, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge.data import describe_small_sets, pick_eval_sets
from emberge_data import Delimited, JsonLines

READERS = (Delimited(), JsonLines())


def warnings_of(path: Path, split: Any = "test") -> list[str]:
    sets = pick_eval_sets(path, readers=READERS, split=split)
    return list(describe_small_sets(sets, split, READERS))


def write_questions(path: Path, count: int, answers: int = 1) -> Path:
    lines = [f"Q{n},A{n} {k}\n" for n in range(count) for k in range(answers)]
    path.write_text("question,answer\n" + "".join(lines))
    return path


def test_a_small_set_is_told_with_half_widths_of_its_intervals(tmp_path: Path) -> None:
    (warning,) = warnings_of(write_questions(tmp_path / "few.csv", 49))
    assert "set 'few' has 49 queries" in warning
    # 1.96 * 33 / sqrt(49) and 1.96 * 12 / sqrt(49)
    assert "of a score is about ± 9 points" in warning
    assert "of a model's gain over its base about ± 3," in warning


@pytest.mark.parametrize(("count", "is_small"), [(99, True), (100, False)])
def test_distinct_queries_are_counted(tmp_path: Path, count: int, is_small: bool) -> None:
    assert bool(warnings_of(write_questions(tmp_path / "a.csv", count, answers=2))) == is_small


@pytest.mark.parametrize(("count", "is_small"), [(99, True), (100, False)])
def test_judged_queries_of_a_folder_are_counted_by_half(
    tmp_path: Path, count: int, is_small: bool
) -> None:
    documents = [{"_id": "d", "text": "D"}, {"_id": "e", "text": "E"}]
    queries = [{"_id": f"q{n}", "text": "Q"} for n in range(200)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judgements = [f"q{n}\t{d}\t1\n" for n in range(count) for d in "de"]
    head = "query-id\tcorpus-id\tscore\n"
    (tmp_path / "qrels_dev.tsv").write_text(head + "".join(judgements))
    assert bool(warnings_of(tmp_path, "dev")) == is_small
    assert warnings_of(tmp_path, "test") == []  # that it is missing is another problem


def test_rows_of_other_kinds_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "Same,x\n" * 99)
    assert "set 'a' has 99 rows" in warnings_of(path)[0]
    path.write_text("text,label\n" + "Same,x\n" * 100)
    assert warnings_of(path) == []
