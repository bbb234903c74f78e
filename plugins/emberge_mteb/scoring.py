"""Scoring of one model on one mteb task: mteb's result, and the units behind it."""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emberge import DataError, Units

_BATCH = 1024  # texts that mteb's loader hands over at once; the encoder batches by itself


def score_task(task: Any, model: Any) -> tuple[float, Units | None, dict[str, Any]]:
    """Run mteb's evaluator and return the score; the task's data is loaded and serves this one model.

    `model` is a `MtebModel`, or one that searches an index of another.

    Returns: (main score, units, mteb's result as JSON). The score is NaN where mteb could not define it.
    """
    import mteb
    from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval

    from emberge_mteb.units import read_units, record_queries

    if isinstance(task, AbsTaskClassification):
        _read_labels_at_once(task)
    retrieval = isinstance(task, AbsTaskRetrieval)
    queries = record_queries(task) if retrieval else {}
    with tempfile.TemporaryDirectory() as name, quiet():
        results = mteb.evaluate(
            model,
            task,
            # mteb files every in-memory model under one name; scores are kept elsewhere.
            cache=None,
            co2_tracker=False,
            encode_kwargs={"batch_size": _BATCH, "show_progress_bar": False},
            show_progress_bar=False,
            # Rankings of retrieval tasks would be large files, and their per-query figures are at hand.
            prediction_folder=None if retrieval else Path(name),
        )
        if not results.task_results:
            raise DataError(f"mteb gave no result for '{task.metadata.name}'; leave it out")
        result = results.task_results[0]
        units = read_units(task, result.scores, queries, Path(name))
    score = float(result.get_score())
    return score, units if math.isfinite(score) else None, json.loads(result.model_dump_json())


def _read_labels_at_once(task: Any) -> None:
    """Give sklearn plain lists: a lazy column is decoded row by row, some forty times a fit.

    Of 15 s that 1,076 texts of 64 labels took to classify, 11 went there.
    """
    original = task._calculate_scores
    task._calculate_scores = lambda gold, guessed: original(list(gold[:]), guessed)


@contextmanager
def quiet() -> Iterator[None]:
    """Undo what mteb does to the process: global seeds, progress bars, sklearn's warnings."""
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
