"""The file `scores.json` of an evaluation's scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from emberge import DataError
from emberge.contracts import from_json

from emberge_evaluate.score_table import list_records
from emberge_evaluate.scores import Comparison, Interval, Scores

SCORES_FILE = "scores.json"
_Number = TypeVar("_Number", float, Interval)


def write_scores(folder: Path, scores: Scores) -> Path:
    """Write `scores.json` into a folder and return its path."""
    content = {
        "format": 1,
        **asdict(scores),
        "ranks": (scores.pooled or scores).ranks,
        "records": list(list_records(scores)),
    }
    path = folder / SCORES_FILE
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return path


def read_scores(folder: Path) -> Scores:
    """Return the scores in an evaluation's folder, without those that are not finite numbers.

    Raises:
        DataError: if the file is missing or was not written by an evaluation.
    """
    path = folder / SCORES_FILE
    try:
        scores = from_json(Scores, json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: these are no scores that can be read ({error}); run the evaluation again"
        ) from error
    pooled = scores.pooled
    return replace(_keep_finite(scores), pooled=_keep_finite(pooled) if pooled else None)


def _keep_finite(scores: Scores) -> Scores:
    def select(rows: Mapping[str, Mapping[str, _Number]]) -> dict[str, dict[str, _Number]]:
        return {m: {key: v for key, v in row.items() if _is_finite(v)} for m, row in rows.items()}

    def select_finite(all_: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
        return tuple(one for one in all_ if _is_finite((one.difference, *(one.interval or ()))))

    return replace(
        scores,
        values=select(scores.values),
        means=select(scores.means),
        intervals=select(scores.intervals),
        spreads=select(scores.spreads),
        comparisons=select_finite(scores.comparisons),
        forgetting=select_finite(scores.forgetting),
    )


def _is_finite(value: float | tuple[float, ...]) -> bool:
    return all(map(math.isfinite, value if isinstance(value, tuple) else (value,)))
