"""Translations and vectors without a model: random ones, of sizes that a test chooses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from emberge_index import Map, SpaceOf, Translation, TranslationHeader, mahalanobis
from numpy.typing import NDArray

from tests.support.tiny import WORDS


def vectors(rows: int, dimension: int, *, seed: int = 0, unit: bool = True) -> NDArray[Any]:
    """Vectors about a mean, float32, as those of a model are."""
    draw = np.random.default_rng(seed)
    mean = np.random.default_rng(99).normal(size=dimension)
    found = (mean + draw.normal(size=(rows, dimension))).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True) if unit else found


def write_translation(
    folder: Path, source: int, target: int | None = None, *, unit: bool = True, **header: Any
) -> Translation:
    """A random translation from `vectors` of one dimension to another, written into a folder."""
    target = target or source
    draw = np.random.default_rng(7)
    known = np.asarray(vectors(512, source, seed=5, unit=unit), np.float64)
    mean = known[::2].mean(0)
    values, axes = np.linalg.eigh(np.cov(known[::2].T))
    scaled = (axes / np.sqrt(values + 0.1 * values.mean())).astype(np.float32)
    given: dict[str, Any] = {
        "kind": "affine",
        "side": "documents",
        "source": SpaceOf("old", "a" * 64, "", source, unit),
        "target": SpaceOf("new", "b" * 64, "", target, unit),
        "texts": 512,
        **header,
    }
    made = Translation(
        TranslationHeader(**given),
        Map(draw.normal(size=(source, target)) / np.sqrt(source), draw.normal(size=target)),
        mean,
        scaled,
        mahalanobis(known[1::2], mean, scaled),
    )
    folder.mkdir(exist_ok=True)
    made.write(folder, {})
    return made


def expected(translation: Translation, given: NDArray[Any]) -> NDArray[np.float64]:
    """The mapped vectors in float64."""
    found = translation.fitted(given)
    if translation.header.target.normalised:
        found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a query and its positive, all texts different."""
    draw = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < 2 * count:
        texts[" ".join(draw.choices(WORDS, k=draw.randint(4, 9)))] = None
    found = list(texts)
    return [{"query": q, "pos": [p]} for q, p in zip(found[::2], found[1::2], strict=True)]


def recipe(folder: Path, step_kind: str, **options: Any) -> Path:
    data = folder / "rows.jsonl"
    rows = options.pop("rows", None) or pairs(80)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    path = folder / "recipe.yaml"
    step = {step_kind: {"data": str(data), **options}}
    path.write_text(json.dumps({"seed": 3, "steps": {"made": step}}, indent=1), "utf-8")
    return path
