"""Tokens that a training will pass through its model, as far as they are known before it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from emberge.contracts import PerDataset, Sampler, TextLength
from emberge.data import SetSize
from emberge.training.fit_options import BatchOptions
from emberge.training.plan.preview import TrainingPreview


def tokens_ahead(
    options: BatchOptions,
    sampler: Sequence[Sampler],
    sizes: Sequence[SetSize],
    preview: TrainingPreview,
) -> tuple[int | None, str]:
    """Return an upper estimate of the tokens of all steps, or None and the reason why there is none.

    A text has as many tokens as its set's texts on average, and no more than the options allow; of texts that
    were not looked at, all are taken to be as long as that.
    """
    rows, tokens = sampler[-1].largest_batch() if sampler else (None, None)
    single = bool(sizes) and all(size.task == "text" for size in sizes)
    if single and tokens is not None and options.max_steps is not None:
        return options.max_steps * tokens, ""
    seen = _count_rows(options, rows, sizes, preview)
    if seen is None:
        return None, "the rows of its data are not known"
    by_set = [_count_row_tokens(options, size) for size in sizes]
    known = [count for count in by_set if count is not None]
    if not known or len(known) < len(by_set):
        return None, "no length limits its texts, which were not looked at"
    weights = [size.rows or 0 for size in sizes]
    if not all(weights):
        weights = [1] * len(sizes)
    row = sum(w * count for w, count in zip(weights, known, strict=True)) / sum(weights)
    return math.ceil(seen * row), ""


def _count_rows(
    options: BatchOptions, rows: int | None, sizes: Sequence[SetSize], preview: TrainingPreview
) -> int | None:
    """Return the number of rows of all steps, a row once for each step that it is in."""
    steps = options.max_steps or preview.steps
    if steps is not None and rows is not None:
        return steps * rows
    epochs = options.epochs or 1.0
    if preview.datasets:
        return math.ceil(epochs * sum(len(taken) for taken in preview.rows.values()))
    stated = [size.rows for size in sizes if size.rows is not None]
    if not stated or len(stated) < len(sizes):
        return None
    share = 1.0 if preview.share is None else preview.share
    return math.ceil(epochs * share * sum(stated))


def _count_row_tokens(options: BatchOptions, size: SetSize) -> float | None:
    """Return the tokens of a row: of its anchor, its positives and as many negatives as are used."""
    query = size.count_query_tokens(_find_limit(options, options.query_length, size))
    if size.task == "text":
        return query
    document = size.count_document_tokens(_find_limit(options, options.document_length, size))
    if query is None or document is None:
        return None
    most = options.hard_negatives
    negatives = most if size.negatives is None else min(most, size.negatives)
    return query + document * (options.positives + negatives)


def _find_limit(
    options: BatchOptions, option: PerDataset[TextLength | None], size: SetSize
) -> int | None:
    task = size.task or ""
    return option.of(size.name, task) or options.max_length.of(size.name, task)
