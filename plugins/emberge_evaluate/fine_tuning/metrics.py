"""Metrics of predictions against gold, with the units that a bootstrap draws."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from emberge import Units

from emberge_evaluate.fine_tuning.task_entry import Metric
from emberge_evaluate.fine_tuning.task_rows import Answers, TaskRow


def score(
    metric: Metric, classes: Sequence[str], rows: Sequence[TaskRow], predictions: Sequence[Any]
) -> float:
    """Return the metric, from 0 (or -1) to 1, of a prediction for each row."""
    gold, predicted = _flatten_pairs(classes, rows, predictions)
    match metric:
        case "accuracy":
            return float(np.mean(np.asarray(gold) == np.asarray(predicted)))
        case "macro_f1":
            return _compute_macro_f1(gold, predicted)
        case "f1":
            return _compute_class_f1(1, gold, predicted)
        case "matthews":
            return _compute_matthews(gold, predicted)
        case "spearman":
            return _correlate_ranks(gold, predicted)
        case "entity_f1":
            counts = _count_entities(classes, rows, predictions)
            both, all_ = (sum(text_counts[i] for text_counts in counts) for i in (0, 1))
            return 2 * both / all_ if all_ else 0.0
        case "span_f1" | "exact_match":
            values = [
                _match_answer(metric, row, text)
                for row, text in zip(rows, predictions, strict=True)
            ]
            return float(np.mean(values))


def units_of(
    metric: Metric,
    classes: Sequence[str],
    sets: Sequence[Sequence[TaskRow]],
    predictions: Sequence[Sequence[Any]],
) -> Units | None:
    """Return the bootstrap units of a metric's mean over sets, each set a group; None if it has none.

    Metrics over words have no units, as the words of one text are not independent.
    """
    parts = [_build_units(metric, classes, *pair) for pair in zip(sets, predictions, strict=True)]
    unit_parts = [part for part in parts if part is not None]
    if len(unit_parts) < len(parts):
        return None
    groups = [number for number, part in enumerate(unit_parts) for _ in part.values]
    gold = [value for part in unit_parts for value in part.gold or ()]
    return Units(
        "text",
        unit_parts[0].statistic,
        [value for part in unit_parts for value in part.values],
        gold if unit_parts[0].gold is not None else None,
        groups if len(unit_parts) > 1 else None,
    )


def _build_units(
    metric: Metric, classes: Sequence[str], rows: Sequence[TaskRow], predictions: Sequence[Any]
) -> Units | None:
    if metric == "entity_f1":
        return None
    if metric in ("span_f1", "exact_match"):
        values = [
            _match_answer(metric, row, text) for row, text in zip(rows, predictions, strict=True)
        ]
        return Units("text", "mean", values)
    if isinstance(rows[0].gold, tuple):
        return None
    gold, predicted = _flatten_pairs(classes, rows, predictions)
    if metric == "accuracy":
        return Units("text", "mean", [float(a == b) for a, b in zip(gold, predicted, strict=True)])
    if metric == "spearman":
        return Units("text", "spearman", list(predicted), list(gold))
    if metric == "macro_f1":
        return Units("text", "macro_f1", list(predicted), list(gold))
    return None


def _flatten_pairs(
    classes: Sequence[str], rows: Sequence[TaskRow], predictions: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return gold and predicted values, of each text or of each word."""
    numbers = {label: number for number, label in enumerate(classes)}
    if rows and isinstance(rows[0].gold, tuple):
        labels = [label for row in rows if isinstance(row.gold, tuple) for label in row.gold]
        return [numbers[label] for label in labels], [
            value for labels_of_text in predictions for value in labels_of_text
        ]
    return [numbers.get(str(row.gold), row.gold) for row in rows], list(predictions)


def _compute_class_f1(label: int, gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the F1 of a class: 2 · right / (gold + predicted); 0 if the class does not occur."""
    is_gold, is_predicted = np.asarray(gold) == label, np.asarray(predicted) == label
    both = int((is_gold & is_predicted).sum())
    total = int(is_gold.sum() + is_predicted.sum())
    return 2 * both / total if total else 0.0


def _compute_macro_f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the mean F1 of all classes in the gold labels or the predictions."""
    classes = sorted({*gold, *(value for value in predicted if value >= 0)})
    return float(np.mean([_compute_class_f1(label, gold, predicted) for label in classes]))


def _compute_matthews(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the Matthews correlation of classes (Gorodkin, 2004); 0 if one side has only one class."""
    classes = sorted({*gold, *predicted})
    is_gold = np.asarray(gold)[:, None] == np.asarray(classes)
    is_predicted = np.asarray(predicted)[:, None] == np.asarray(classes)
    count = len(gold)
    right = float((is_gold & is_predicted).sum())
    gold_counts, predicted_counts = is_gold.sum(0).astype(float), is_predicted.sum(0).astype(float)
    spread = math.sqrt(
        (count**2 - (predicted_counts**2).sum()) * (count**2 - (gold_counts**2).sum())
    )
    return (right * count - float(gold_counts @ predicted_counts)) / spread if spread else 0.0


def _correlate_ranks(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant or not finite."""
    from scipy.stats import spearmanr

    if len(set(gold)) < 2 or len(set(predicted)) < 2 or not np.all(np.isfinite(predicted)):
        return 0.0
    return float(spearmanr(gold, predicted).statistic)


def _count_entities(
    classes: Sequence[str], rows: Sequence[TaskRow], predictions: Sequence[Any]
) -> list[tuple[int, int]]:
    """Return for each text (number of right entities, sum of gold and predicted entities)."""
    counts = []
    for row, numbers in zip(rows, predictions, strict=True):
        gold = _find_entities(row.gold if isinstance(row.gold, tuple) else ())
        mine = _find_entities(["O" if n < 0 else classes[n] for n in numbers])
        counts.append((len(gold & mine), len(gold) + len(mine)))
    return counts


def _find_entities(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (kind, first, last) of the entities that labels `B-…`, `I-…` and `O` mark, as seqeval does.

    An `I-` label begins an entity if it follows `O` or a label of another kind.
    """
    entities, begin, kind = set(), 0, ""
    for position, label in enumerate([*labels, "O"]):
        mark, _, label_kind = label.partition("-")
        goes_on = mark == "I" and label_kind == kind
        if kind and not goes_on:
            entities.add((kind, begin, position - 1))
            kind = ""
        if mark in ("B", "I") and not goes_on:
            kind, begin = label_kind, position
    return entities


def _match_answer(metric: Metric, row: TaskRow, text: str) -> float:
    """Return the answer's best score against the gold answers, as in SQuAD (arXiv:1606.05250)."""
    assert isinstance(row.gold, Answers)
    mine = _normalise_answer(text)
    if metric == "exact_match":
        return float(any(mine == _normalise_answer(answer) for answer in row.gold.texts))
    return max(_compute_word_f1(mine, _normalise_answer(answer)) for answer in row.gold.texts)


def _normalise_answer(text: str) -> str:
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def _compute_word_f1(first: str, second: str) -> float:
    mine, theirs = first.split(), second.split()
    if not mine or not theirs:
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * shared / (len(mine) + len(theirs))
