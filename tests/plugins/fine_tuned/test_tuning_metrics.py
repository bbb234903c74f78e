"""Metrics of fine-tuned models, and their units."""

from __future__ import annotations

from typing import Any

import pytest
from emberge_evaluate import compute_statistic
from emberge_fine_tuned import TaskEntry, TaskRowSource
from emberge_fine_tuned.metrics import build_units, compute_score
from emberge_fine_tuned.task_data import TaskData
from emberge_fine_tuned.task_rows import Answers, TaskRow

CLASSES = ("a", "b", "c")


def data(metric: Any, classes: tuple[str, ...] = CLASSES, **options: Any) -> TaskData:
    source = TaskRowSource()
    entry = TaskEntry(name="x", train=source, test=(source,), metric=metric, **options)
    return TaskData(entry, [], [], {}, classes, "")


def words(metric: Any, classes: tuple[str, ...] = CLASSES) -> TaskData:
    return data(metric, classes, head="tokens")


def answers(metric: Any) -> TaskData:
    return data(metric, (), head="span", second="passage")


@pytest.mark.parametrize(
    ("metric", "gold", "found", "expected"),
    [
        ("accuracy", "aabbc", [0, 1, 1, 1, 0], 3 / 5),
        # F1 of a: 2 · 1 / (2 + 2), of b: 2 · 2 / (2 + 3), of c: 0.
        ("macro_f1", "aabbc", [0, 1, 1, 1, 0], (1 / 2 + 4 / 5 + 0) / 3),
        # A class that only the prediction has counts, one that nobody has does not.
        ("macro_f1", "aab", [0, 2, 1], (2 / 3 + 1 + 0) / 3),
        ("macro_f1", "aab", [0, 0, 1], 1.0),
        ("f1", "aabb", [0, 1, 1, 0], 2 * 1 / (2 + 2)),
        ("f1", "aaaa", [0, 0, 0, 0], 0.0),
        # (right · n - Σ gold · found) / √((n² - Σ found²)(n² - Σ gold²))
        (
            "matthews",
            "aabb",
            [0, 0, 0, 1],
            (3 * 4 - (2 * 3 + 2 * 1)) / ((16 - 10) * (16 - 8)) ** 0.5,
        ),
        ("matthews", "aabb", [0, 0, 0, 0], 0.0),
        ("matthews", "aaaa", [0, 1, 0, 1], 0.0),
    ],
)
def test_metrics_of_classes_are_the_worked_numbers(
    metric: str, gold: str, found: list[int], expected: float
) -> None:
    rows = [TaskRow("", label) for label in gold]
    assert compute_score(data(metric), rows, found) == pytest.approx(expected, abs=1e-15)


def test_correlations_of_ranks_by_hand() -> None:
    graded = data(None, (), head="regression")
    rows = [TaskRow("", grade) for grade in (1.0, 2.0, 3.0, 4.0)]
    # 1 - 6 Σ d² / (n (n² - 1)) with d = 0, 0, 1, 1
    assert compute_score(graded, rows, [0.1, 0.2, 0.9, 0.8]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert compute_score(graded, rows, [0.5] * 4) == 0.0


def test_a_words_label_that_was_cut_off_is_wrong() -> None:
    rows = [TaskRow("", ("a", "b")), TaskRow("", ("b",))]
    assert compute_score(words("accuracy"), rows, [[0, 1], [-1]]) == pytest.approx(2 / 3)
    assert compute_score(words("macro_f1"), rows, [[0, 1], [-1]]) == pytest.approx((1 + 2 / 3) / 2)
    assert build_units(words("macro_f1"), [rows], [[[0, 1], [-1]]]) is None


def test_entities_count_whole() -> None:
    entities = words("entity_f1", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    row = TaskRow("", ("B-PER", "I-PER", "O", "B-LOC", "B-LOC"))
    half = [1, 0, 0, 3, 3]  # the person is cut, the places are right
    assert compute_score(entities, [row], [half]) == pytest.approx(2 * 2 / (3 + 3))
    loose = [2, 2, 0, 3, 4]  # an I- begins an entity; the second place is joined to the first
    assert compute_score(entities, [row], [loose]) == pytest.approx(2 * 1 / (3 + 2))
    assert compute_score(entities, [row], [[0] * 5]) == 0.0
    assert build_units(entities, [[row]], [[half]]) is None


def test_answers_count_by_shared_words() -> None:
    row = TaskRow("", Answers(("the old bank", "a bank"), 0), "the old bank")
    assert compute_score(answers("exact_match"), [row], ["Bank."]) == 1.0, (
        "articles and marks do not count"
    )
    assert compute_score(answers("span_f1"), [row], ["old card bank"]) == pytest.approx(
        2 * 2 / (3 + 2)
    )
    assert compute_score(answers("span_f1"), [row], [""]) == 0.0


def test_units_of_several_sets_are_groups() -> None:
    sets = [[TaskRow("", label) for label in gold] for gold in ("aab", "bca")]
    found = [[0, 1, 1], [1, 0, 0]]
    units = build_units(data("accuracy"), sets, found)
    assert units is not None
    assert compute_statistic(units) == pytest.approx(2 / 3)
    units = build_units(data("macro_f1"), sets[:1], found[:1])
    assert units is not None
    assert compute_statistic(units) == pytest.approx(
        compute_score(data("macro_f1"), sets[0], found[0])
    )
