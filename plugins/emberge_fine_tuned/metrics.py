"""Metrics of predictions against gold labels, and the scores of texts that a bootstrap draws from."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from emberge import Units

from emberge_fine_tuned.task_data import TaskData
from emberge_fine_tuned.task_rows import Answers, TaskRow

# Of the others no score of one text can be drawn again: entities are many in a text.
_METRICS_WITH_UNITS = ("macro_f1", "spearman", "accuracy", "span_f1", "exact_match")


def compute_score(data: TaskData, rows: Sequence[TaskRow], predictions: Sequence[Any]) -> float:
    """Return the task's metric, from 0 (or -1) to 1, of a prediction for each row."""
    metric = data.entry.scored_by
    if metric in ("span_f1", "exact_match"):
        return float(np.mean(_match_answers(metric, rows, predictions)))
    if metric == "entity_f1":
        return _compute_entity_f1(data.classes, rows, predictions)
    return _score_values(metric, *_flatten_pairs(data, rows, predictions))


def _score_values(metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Return the metric of gold and predicted numbers, or of numbers of classes; -1 is no class."""
    from scipy.stats import spearmanr
    from sklearn import metrics

    if metric == "accuracy":
        return float(metrics.accuracy_score(gold, predicted))
    if metric in ("macro_f1", "f1"):
        labels = [1] if metric == "f1" else sorted({*gold, *predicted} - {-1})
        f1 = metrics.f1_score(gold, predicted, labels=labels, average="macro", zero_division=0)
        return float(f1)
    # Without two values on either side there is no correlation.
    if len(set(gold)) < 2 or len(set(predicted)) < 2 or not np.all(np.isfinite(predicted)):
        return 0.0
    if metric == "matthews":
        return float(metrics.matthews_corrcoef(gold, predicted))
    return float(spearmanr(gold, predicted).statistic)


def build_units(
    data: TaskData, sets: Sequence[Sequence[TaskRow]], predictions: Sequence[Sequence[Any]]
) -> Units | None:
    """Return the bootstrap units of the metric's mean over sets, each set a group; None if it has none.

    Metrics over words have no units, as the words of one text are not independent.
    """
    metric = data.entry.scored_by
    if metric not in _METRICS_WITH_UNITS or data.entry.head == "tokens":
        return None
    groups = [number for number, rows in enumerate(sets) for _ in rows] if len(sets) > 1 else None
    rows = [row for rows in sets for row in rows]
    predicted = [value for values in predictions for value in values]
    if isinstance(rows[0].gold, Answers):
        return Units("text", "mean", _match_answers(metric, rows, predicted), None, groups)
    gold, predicted = _flatten_pairs(data, rows, predicted)
    if metric == "accuracy":
        right = [float(a == b) for a, b in zip(gold, predicted, strict=True)]
        return Units("text", "mean", right, None, groups)
    if metric == "macro_f1":
        return Units("text", "macro_f1", predicted, gold, groups)
    return Units("text", "spearman", predicted, gold, groups)


def _flatten_pairs(
    data: TaskData, rows: Sequence[TaskRow], predictions: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return gold and predicted values, of each text or of each word."""
    if data.entry.head == "tokens":
        words = [data.number_by_class[label] for row in rows for label in row.labels]
        return words, [number for numbers in predictions for number in numbers]
    return [data.number_by_class.get(str(row.gold), row.gold) for row in rows], list(predictions)


def _compute_entity_f1(
    classes: Sequence[str], rows: Sequence[TaskRow], predictions: Sequence[Any]
) -> float:
    """Return the F1 of whole entities; 0 without any."""
    both = total = 0
    for row, numbers in zip(rows, predictions, strict=True):
        gold = _find_entities(row.labels)
        mine = _find_entities(["O" if n < 0 else classes[n] for n in numbers])
        both, total = both + len(gold & mine), total + len(gold) + len(mine)
    return 2 * both / total if total else 0.0


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


def _match_answers(metric: str, rows: Sequence[TaskRow], answers: Sequence[str]) -> list[float]:
    """Return each answer's best match with a gold answer, as in SQuAD (arXiv:1606.05250)."""
    matches = []
    for row, answer in zip(rows, answers, strict=True):
        assert isinstance(row.gold, Answers)
        words, golds = _list_words(answer), [_list_words(text) for text in row.gold.texts]
        f1 = max(_compute_word_f1(words, gold) for gold in golds)
        matches.append(f1 if metric == "span_f1" else float(words in golds))
    return matches


def _list_words(text: str) -> list[str]:
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def _compute_word_f1(words: list[str], others: list[str]) -> float:
    if not words or not others:
        return float(words == others)
    shared = (Counter(words) & Counter(others)).total()
    return 2 * shared / (len(words) + len(others))
