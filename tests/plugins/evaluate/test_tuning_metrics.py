"""Metrics of fine-tuned models, their units, and their curves."""

from __future__ import annotations

import random

import numpy as np
import pytest
from emberge import TaskInfo, TaskScore, Units
from emberge_evaluate.bootstrap import resample, statistic
from emberge_evaluate.fine_tuning.fine_tuned import learning_curves, smoothed
from emberge_evaluate.fine_tuning.metrics import score, units_of
from emberge_evaluate.fine_tuning.task_rows import Answers, TaskRow
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

CLASSES = ("a", "b", "c")


def drawn(count: int, seed: int) -> tuple[list[TaskRow], list[int]]:
    generator = random.Random(seed)
    gold = [generator.randrange(3) for _ in range(count)]
    found = [g if generator.random() < 0.6 else generator.randrange(3) for g in gold]
    return [TaskRow("", CLASSES[g]) for g in gold], found


def test_metrics_of_classes_are_those_of_sklearn() -> None:
    rows, found = drawn(60, 1)
    gold = [CLASSES.index(str(row.gold)) for row in rows]
    expected = {
        "accuracy": accuracy_score(gold, found),
        "macro_f1": f1_score(gold, found, average="macro"),
        "f1": f1_score(gold, found, average=None)[1],
        "matthews": matthews_corrcoef(gold, found),
    }
    mine = {metric: score(metric, CLASSES, rows, found) for metric in expected}  # type: ignore[arg-type]
    assert mine == pytest.approx(expected)
    assert score("matthews", CLASSES, rows, [0] * 60) == 0.0


def test_a_words_label_that_was_cut_off_is_wrong() -> None:
    rows = [TaskRow("", ("a", "b")), TaskRow("", ("b",))]
    assert score("accuracy", CLASSES, rows, [[0, 1], [-1]]) == pytest.approx(2 / 3)
    assert score("macro_f1", CLASSES, rows, [[0, 1], [-1]]) == pytest.approx((1 + 2 / 3) / 2)
    assert units_of("macro_f1", CLASSES, [rows], [[[0, 1], [-1]]]) is None


def test_entities_count_whole() -> None:
    classes = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    row = TaskRow("", ("B-PER", "I-PER", "O", "B-LOC", "B-LOC"))
    half = [1, 0, 0, 3, 3]  # the person is cut, the places are right
    assert score("entity_f1", classes, [row], [half]) == pytest.approx(2 * 2 / (3 + 3))
    loose = [2, 2, 0, 3, 4]  # an I- begins an entity; the second place is joined to the first
    assert score("entity_f1", classes, [row], [loose]) == pytest.approx(2 * 1 / (3 + 2))
    assert score("entity_f1", classes, [row], [[0] * 5]) == 0.0


def test_answers_count_by_shared_words() -> None:
    row = TaskRow("", Answers(("the old bank", "a bank"), 0), "the old bank")
    assert score("exact_match", (), [row], ["Bank."]) == 1.0, "articles and marks do not count"
    assert score("span_f1", (), [row], ["old card bank"]) == pytest.approx(2 * 2 / (3 + 2))
    assert score("span_f1", (), [row], [""]) == 0.0


@pytest.mark.slow
def test_a_macro_f1_is_drawn_as_sklearn_would_have_it() -> None:
    rows, found = drawn(40, 2)
    units = units_of("macro_f1", CLASSES, [rows], [found])
    assert units is not None
    gold = np.asarray(units.gold)
    assert statistic(units) == pytest.approx(f1_score(gold, found, average="macro"))
    once = Units("text", "macro_f1", [*found, *found[:5]], [*gold, *gold[:5]])
    assert statistic(once) == pytest.approx(
        f1_score([*gold, *gold[:5]], [*found, *found[:5]], average="macro")
    )
    samples = resample([units], resamples=2000, seed=0, name="x")[0]
    generator = np.random.default_rng(0)
    plain = []
    for _ in range(2000):
        chosen = generator.integers(0, 40, 40)
        plain.append(
            f1_score(gold[chosen], np.asarray(found)[chosen], average="macro", zero_division=0)
        )
    # Both are 2000 draws of one distribution: means differ by some standard errors at most.
    assert samples.mean() == pytest.approx(
        np.mean(plain), abs=5 * np.std(plain) * (2 / 2000) ** 0.5
    )
    assert samples.std() == pytest.approx(np.std(plain), rel=0.15)


def test_units_of_several_sets_are_groups() -> None:
    pairs = [drawn(20, seed) for seed in (1, 2)]
    units = units_of("accuracy", CLASSES, [p[0] for p in pairs], [p[1] for p in pairs])
    assert units is not None
    each = [score("accuracy", CLASSES, *pair) for pair in pairs]
    assert statistic(units) == pytest.approx(sum(each) / 2)


def test_a_point_of_a_curve_has_four_tenths_of_those_before() -> None:
    assert smoothed([1.0, 0.0, 0.0]) == pytest.approx([1.0, 0.4, 0.16])

    def scored(seed: int, *dev: float) -> TaskScore:
        curve = [[10 * (i + 1), 1.0, value] for i, value in enumerate(dev)]
        task = TaskInfo("x", "classification", "accuracy").at_seed(seed)
        return TaskScore(task, 0.5, result={"curve": curve})

    (figure,) = learning_curves(
        {
            "m": {"x#1": scored(1, 0.0, 1.0), "x#2": scored(2, 1.0)},
            "n": {"x#1": scored(1, 0.5, 0.5, 0.5)},
        },
        {"x": ["x"]},
    )
    assert figure["lines"]["labels"] == ["10", "20", "30"]
    assert figure["lines"]["series"]["m"] == [0.5, pytest.approx(0.6), None]
    assert figure["lines"]["series"]["n"] == pytest.approx([0.5, 0.5, 0.5])
