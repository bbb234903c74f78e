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
    metric: Metric, classes: Sequence[str], rows: Sequence[TaskRow], found: Sequence[Any]
) -> float:
    """Return the metric, from 0 (or -1) to 1, of a prediction for each row."""
    gold, predicted = _flatten_pairs(classes, rows, found)
    match metric:
        case "accuracy":
            return float(np.mean(np.asarray(gold) == np.asarray(predicted)))
        case "macro_f1":
            return _macro_f1(gold, predicted)
        case "f1":
            return _class_f1(1, gold, predicted)
        case "matthews":
            return _matthews_correlation(gold, predicted)
        case "spearman":
            return _rank_correlation(gold, predicted)
        case "entity_f1":
            counts = _entity_counts(classes, rows, found)
            both, all_ = (sum(one[i] for one in counts) for i in (0, 1))
            return 2 * both / all_ if all_ else 0.0
        case "span_f1" | "exact_match":
            values = [
                _match_answer(metric, row, text) for row, text in zip(rows, found, strict=True)
            ]
            return float(np.mean(values))


def units_of(
    metric: Metric,
    classes: Sequence[str],
    sets: Sequence[Sequence[TaskRow]],
    found: Sequence[Sequence[Any]],
) -> Units | None:
    """Return the units behind the mean of a metric over sets, each a group; None where it has none.

    Words of one text are not drawn apart from each other, so metrics over words have none.
    """
    parts = [_build_units(metric, classes, *pair) for pair in zip(sets, found, strict=True)]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    groups = [number for number, part in enumerate(known) for _ in part.values]
    gold = [value for part in known for value in part.gold or ()]
    return Units(
        "text",
        known[0].statistic,
        [value for part in known for value in part.values],
        gold if known[0].gold is not None else None,
        groups if len(known) > 1 else None,
    )


def _build_units(
    metric: Metric, classes: Sequence[str], rows: Sequence[TaskRow], found: Sequence[Any]
) -> Units | None:
    if metric == "entity_f1":
        return None
    if metric in ("span_f1", "exact_match"):
        values = [_match_answer(metric, row, text) for row, text in zip(rows, found, strict=True)]
        return Units("text", "mean", values)
    if isinstance(rows[0].gold, tuple):
        return None
    gold, predicted = _flatten_pairs(classes, rows, found)
    if metric == "accuracy":
        return Units("text", "mean", [float(a == b) for a, b in zip(gold, predicted, strict=True)])
    if metric == "spearman":
        return Units("text", "spearman", list(predicted), list(gold))
    if metric == "macro_f1":
        return Units("text", "macro_f1", list(predicted), list(gold))
    return None


def _flatten_pairs(
    classes: Sequence[str], rows: Sequence[TaskRow], found: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return gold and predicted values, of each text or of each word."""
    numbers = {label: number for number, label in enumerate(classes)}
    if rows and isinstance(rows[0].gold, tuple):
        labels = [label for row in rows if isinstance(row.gold, tuple) for label in row.gold]
        return [numbers[label] for label in labels], [value for one in found for value in one]
    return [numbers.get(str(row.gold), row.gold) for row in rows], list(found)


def _class_f1(one: int, gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the F1 of a class: twice those found over those found and those there; 0 of none."""
    is_gold, is_found = np.asarray(gold) == one, np.asarray(predicted) == one
    both = int((is_gold & is_found).sum())
    total = int(is_gold.sum() + is_found.sum())
    return 2 * both / total if total else 0.0


def _macro_f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the mean F1 of all classes in the gold labels or the predictions."""
    classes = sorted({*gold, *(value for value in predicted if value >= 0)})
    return float(np.mean([_class_f1(one, gold, predicted) for one in classes]))


def _matthews_correlation(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the correlation of classes (Gorodkin, 2004); 0 where one side has one class."""
    known = sorted({*gold, *predicted})
    is_gold = np.asarray(gold)[:, None] == np.asarray(known)
    is_found = np.asarray(predicted)[:, None] == np.asarray(known)
    count = len(gold)
    right = float((is_gold & is_found).sum())
    there, found = is_gold.sum(0).astype(float), is_found.sum(0).astype(float)
    spread = math.sqrt((count**2 - (found**2).sum()) * (count**2 - (there**2).sum()))
    return (right * count - float(there @ found)) / spread if spread else 0.0


def _rank_correlation(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the correlation of ranks; 0 where one side is constant or no number."""
    from scipy.stats import spearmanr

    if len(set(gold)) < 2 or len(set(predicted)) < 2 or not np.all(np.isfinite(predicted)):
        return 0.0
    return float(spearmanr(gold, predicted).statistic)


def _entity_counts(
    classes: Sequence[str], rows: Sequence[TaskRow], found: Sequence[Any]
) -> list[tuple[int, int]]:
    """Return for each text the number of entities found, and the sum of gold and predicted entities."""
    counts = []
    for row, numbers in zip(rows, found, strict=True):
        gold = _find_entities(row.gold if isinstance(row.gold, tuple) else ())
        mine = _find_entities(["O" if n < 0 else classes[n] for n in numbers])
        counts.append((len(gold & mine), len(gold) + len(mine)))
    return counts


def _find_entities(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (kind, first, last) of the entities that labels `B-…`, `I-…` and `O` mark, as seqeval does.

    An `I-` after another kind or `O` begins an entity.
    """
    found, begin, kind = set(), 0, ""
    for place, label in enumerate([*labels, "O"]):
        mark, _, own = label.partition("-")
        goes_on = mark == "I" and own == kind
        if kind and not goes_on:
            found.add((kind, begin, place - 1))
            kind = ""
        if mark in ("B", "I") and not goes_on:
            kind, begin = own, place
    return found


def _match_answer(metric: Metric, row: TaskRow, text: str) -> float:
    """Return how well an answer is the best of the gold ones, as SQuAD counts (arXiv:1606.05250)."""
    assert isinstance(row.gold, Answers)
    mine = _normalise_answer(text)
    if metric == "exact_match":
        return float(any(mine == _normalise_answer(answer) for answer in row.gold.texts))
    return max(_word_f1(mine, _normalise_answer(answer)) for answer in row.gold.texts)


def _normalise_answer(text: str) -> str:
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def _word_f1(one: str, other: str) -> float:
    mine, theirs = one.split(), other.split()
    if not mine or not theirs:
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * shared / (len(mine) + len(theirs))
