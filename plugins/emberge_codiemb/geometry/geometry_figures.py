"""Figures of a geometry as data, which a report draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emberge_codiemb.geometry.geometry_result import Geometry
from emberge_codiemb.geometry.geometry_table import (
    COLUMNS,
    drift_head,
    drift_rows,
    how_measured,
    rows_of,
)


def figures_of(result: Geometry) -> list[dict[str, Any]]:
    """Return the figures as plain values: measures by data set, and drift."""
    return [*_measures(result), *_drift(result)]


def _measures(result: Geometry) -> Iterator[dict[str, Any]]:
    if not result.sets:
        return
    yield {
        "title": "How the tokens of a text spread",
        "points": {
            "x": "token similarity",
            "y": "SVD entropy (nats)",
            "series": _series(result, "token_similarity", "svd_entropy"),
        },
        "caption": "A point for each data set: means over its texts. Tokens that point one way are to the "
        f"right and low. {how_measured(result)}",
        "table": {
            "title": "Geometry by data set and model",
            "head": ["Data set", "Model", *(_capital(one.title) for one in COLUMNS)],
            "rows": rows_of(result),
        },
    }


def _series(result: Geometry, x: str, y: str) -> dict[str, list[list[Any]]]:
    return {
        model.name: [[one.mean[x], one.mean[y], name] for name, one in model.sets.items()]
        for model in result.models
    }


def _drift(result: Geometry) -> Iterator[dict[str, Any]]:
    series = {
        name: [[one.cka, one.neighbours]]
        for name, one in result.drift.items()
        if one.cka is not None
    }
    if not series:
        return
    probe = result.probe
    titles = drift_head(probe)
    yield {
        "title": f"Drift from {probe['parent']}",
        "points": {"x": titles[0], "y": titles[1], "series": series},
        "caption": f"Embeddings of {probe['texts']:,} texts beside those of {probe['parent']}: at the top "
        "right they are alike.",
        "table": {
            "title": "Drift by model",
            "head": ["Model", *(_capital(title) for title in titles)],
            "rows": drift_rows(result),
        },
    }


def _capital(title: str) -> str:
    return title[0].upper() + title[1:]
