"""Scoring of one model on one mteb task: mteb's result, and the units behind it."""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emberge import DataError, Units

if TYPE_CHECKING:
    from emberge_mteb.models import Reranker, SearchModel, VectorModel

_BATCH_TEXTS = 1024  # texts that mteb's loader hands over at once; the encoder batches by itself
# Per-query figures: {(split, subset): {query: {metric: value}}}.
QueryFigures = dict[tuple[str, str], Mapping[str, Mapping[str, float]]]
# Units of one split and subset of a task: values, and gold where the statistic needs it.
PartUnits = tuple[Sequence[float], Sequence[float] | None]
_TREC_METRICS = {
    "ndcg_at_": "ndcg_cut_",
    "map_at_": "map_cut_",
    "recall_at_": "recall_",
    "precision_at_": "P_",
    "hit_rate_at_": "success_",
}
_STS_PREDICTIONS = {"cosine_spearman": "cosine_scores", "spearman": "similarity_scores"}
# Whether a higher value means more alike, and where the values are.
_PAIR_PREDICTIONS = {
    "cosine_ap": ("cosine_scores", 1.0),
    "similarity_ap": ("similarity_scores", 1.0),
    "dot_ap": ("dot_scores", 1.0),
    "manhattan_ap": ("manhattan_distances", -1.0),
    "euclidean_ap": ("euclidean_distances", -1.0),
}


class TaskFigures(NamedTuple):
    """Main score on a task, its units, and mteb's result as JSON."""

    score: float
    units: Units | None
    result: dict[str, Any]


def score_task(task: Any, model: VectorModel | SearchModel | Reranker) -> TaskFigures:
    """Run mteb's evaluator and return the score; the task's data is loaded and serves this one model.

    The score is NaN if mteb could not compute it.
    """
    import mteb
    from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval

    if isinstance(task, AbsTaskClassification):
        _read_labels_at_once(task)
    retrieval = isinstance(task, AbsTaskRetrieval)
    queries = record_queries(task) if retrieval else {}
    with tempfile.TemporaryDirectory() as name, silence_mteb():
        try:
            results = mteb.evaluate(
                model,
                task,
                # mteb files every in-memory model under one name; scores are kept elsewhere.
                cache=None,
                co2_tracker=False,
                encode_kwargs={"batch_size": _BATCH_TEXTS, "show_progress_bar": False},
                show_progress_bar=False,
                # Rankings of retrieval tasks would be large files, and per-query figures are at hand.
                prediction_folder=None if retrieval else Path(name),
            )
        except ValueError as error:  # such as for media that the model does not read
            raise DataError(f"mteb task '{task.metadata.name}': {error}") from error
        if not results.task_results:
            raise DataError(f"mteb gave no result for '{task.metadata.name}'; leave it out")
        result = results.task_results[0]
        units = read_units(task, result.scores, queries, Path(name))
    score = float(result.get_score())
    kept_units = units if math.isfinite(score) else None
    return TaskFigures(score, kept_units, json.loads(result.model_dump_json()))


def _read_labels_at_once(task: Any) -> None:
    """Make sklearn read plain lists: a lazy column would be decoded row by row, about forty times per fit.

    Classifying 1,076 texts with 64 labels took 15 s, and 11 s of these were spent on decoding.
    """
    original = task._calculate_scores
    task._calculate_scores = lambda gold, guessed: original(list(gold[:]), guessed)


@contextmanager
def silence_mteb() -> Iterator[None]:
    """Hide progress bars and sklearn's warnings in the block, and restore random states after it."""
    import datasets
    import numpy as np
    from scipy.stats import ConstantInputWarning
    from sklearn.exceptions import ConvergenceWarning, UndefinedMetricWarning

    bars = datasets.are_progress_bars_disabled()
    torch = sys.modules.get("torch")  # mteb seeds it if it is there; `check` need not wait for it
    states = random.getstate(), np.random.get_state()
    torch_state = torch.random.get_rng_state() if torch else None
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            # mteb's protocol fits for 100 iterations on 8 texts a label, converged or not, and asks for
            # the precision of labels that nothing was assigned to. A score that stays undefined is reported.
            for category in (ConvergenceWarning, UndefinedMetricWarning, ConstantInputWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch:
            torch.random.set_rng_state(torch_state)
        if not bars:
            datasets.enable_progress_bars()


def record_queries(task: Any) -> QueryFigures:
    """Return the scores of a retrieval task's queries, which are filled in while the task runs."""
    filled: QueryFigures = {}
    original = task.task_specific_scores

    def record(scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str) -> Any:
        filled[hf_split, hf_subset] = scores
        return original(scores, qrels, results, hf_split=hf_split, hf_subset=hf_subset)

    task.task_specific_scores = record
    return filled


def read_units(
    task: Any,
    scores: Mapping[str, Sequence[Mapping[str, Any]]],
    queries: QueryFigures,
    folder: Path,
) -> Units | None:
    """Return the units of a task that has run; None if mteb gives no units for the task's main score.

    `scores` are mteb's scores by split; `folder` has the task's predictions.
    """
    from mteb import abstasks

    parts = [(split, entry) for split, entries in scores.items() for entry in entries]
    metric = task.metadata.main_score
    if isinstance(task, abstasks.AbsTaskRetrieval):
        recorded = _RecordedQueries(queries, metric)
        return _join_units("query", "mean", parts, recorded.read_query_units)
    file = folder / task.prediction_file_name
    if not file.is_file():
        return None
    predictions = _Predictions(task, metric, json.loads(file.read_text(encoding="utf-8")))
    if isinstance(task, abstasks.AbsTaskSTS) and metric in _STS_PREDICTIONS:
        return _join_units("pair", "spearman", parts, predictions.read_similarity_units)
    if isinstance(task, abstasks.AbsTaskPairClassification):
        return _join_units("pair", "average_precision", parts, predictions.read_pair_units)
    if isinstance(task, abstasks.AbsTaskClassification) and not task.is_cross_validation:
        return _join_units("text", "mean", parts, predictions.read_text_units)
    return None


def _join_units(
    unit: str,
    statistic: Any,
    parts: Sequence[tuple[str, Mapping[str, Any]]],
    read: Callable[[str, Mapping[str, Any]], PartUnits | None],
) -> Units | None:
    """Return the units of all parts joined, one group for each part."""
    values: list[float] = []
    gold: list[float] = []
    groups: list[int] = []
    for number, (split, entry) in enumerate(parts):
        part = read(split, entry)
        if part is None or not len(part[0]) or not _is_mean_of_units(statistic, part[0], entry):
            return None
        values += [float(value) for value in part[0]]
        gold += [float(value) for value in part[1] or ()]
        groups += [number] * len(part[0])
    return Units(unit, statistic, values, gold or None, groups if len(parts) > 1 else None)


def _is_mean_of_units(statistic: str, values: Sequence[float], entry: Mapping[str, Any]) -> bool:
    """Return whether the mean of the units is the main score, up to mteb's rounding to five digits."""
    if statistic != "mean":
        return True
    return bool(abs(sum(values) / len(values) - entry["main_score"]) < 2e-5)


class _RecordedQueries(NamedTuple):
    """Per-query figures of a retrieval task that has run, and its main metric."""

    queries: QueryFigures
    metric: str

    def read_query_units(self, split: str, entry: Mapping[str, Any]) -> PartUnits | None:
        """Return the metric of each query; None if it was not recorded."""
        matching = (self.metric.replace(k, v) for k, v in _TREC_METRICS.items() if k in self.metric)
        name = next(matching, "")
        by_query = self.queries.get((split, entry["hf_subset"]), {})
        if any(name not in figures for figures in by_query.values()):
            return None
        return [by_query[query][name] for query in sorted(by_query)], None


class _Predictions(NamedTuple):
    """Predictions of a task that has run, by subset and split, and its main metric."""

    task: Any
    metric: str
    by_subset: Mapping[str, Mapping[str, Any]]

    def read_similarity_units(self, split: str, entry: Mapping[str, Any]) -> PartUnits:
        """Return the similarity of each pair, and its gold score."""
        predicted = self.by_subset[entry["hf_subset"]][split]
        return predicted[_STS_PREDICTIONS[self.metric]], list(
            self._find_gold(split, entry, "score")
        )

    def read_pair_units(self, split: str, entry: Mapping[str, Any]) -> PartUnits | None:
        """Return a number for each pair, higher for more alike, and its label; None for other metrics."""
        metric = self.metric
        if metric == "max_ap":  # the best similarity on all pairs stays the one that is resampled
            metric = max(_PAIR_PREDICTIONS, key=lambda name: entry.get(name, 0.0))
        if metric not in _PAIR_PREDICTIONS:
            return None
        name, sign = _PAIR_PREDICTIONS[metric]
        labels = self._find_gold(split, entry, self.task.label_column_name)
        # mteb's first version kept all pairs of a set in one row.
        gold = labels[0] if len(labels) == 1 and isinstance(labels[0], list) else labels
        predicted = self.by_subset[entry["hf_subset"]][split]
        return [sign * value for value in predicted[name]], list(gold)

    def read_text_units(self, split: str, entry: Mapping[str, Any]) -> PartUnits | None:
        """Return how often each text was classified correctly, over mteb's repeated fits."""
        if self.metric != "accuracy":
            return None
        predictions = self.by_subset[entry["hf_subset"]][split]
        gold = list(self._find_gold(split, entry, self.task.label_column_name))
        return [
            sum(predicted[row] == label for predicted in predictions) / len(predictions)
            for row, label in enumerate(gold)
        ], None

    def _find_gold(self, split: str, entry: Mapping[str, Any], column: str) -> Any:
        return self.task.dataset.get(entry["hf_subset"], self.task.dataset)[split][column]
