"""The step `translate`, run from recipes on tiny real encoders."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main
from emberge_index.translation.translation_file import read_translation

from tests.support.tiny import WORDS

Run = Callable[..., Path]


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


@pytest.fixture
def run(berts: list[Path], tmp_path: Path) -> Run:
    """Fit between two siblings and return the result's folder."""

    def done(step_kind: str = "translate", **options: Any) -> Path:
        given = {"old": str(berts[0]), "new": str(berts[1]), **options}
        path = recipe(tmp_path, step_kind, **given)
        assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
        return tmp_path / "out" / "made"

    return done


@pytest.mark.parametrize("kind", ["affine", "orthogonal", "shift", "low_rank"])
def test_each_kind_leaves_a_map_with_its_models_and_measures(
    run: Run, berts: list[Path], kind: str
) -> None:
    from emberge.engine import model_fingerprint

    folder = run(kind=kind, rank=4)
    header = read_translation(folder).header
    assert (header.kind, header.side, header.texts) == (kind, "documents", 80)
    assert header.source.fingerprint == model_fingerprint(berts[0])
    assert header.target.fingerprint == model_fingerprint(berts[1])
    details = json.loads((folder / "artifact.json").read_text())["details"]
    measures = details["translation"]["measures"]
    assert measures["cosine"]["p5"] <= measures["cosine"]["mean"] <= 1
    assert set(measures["overlap"]) == {"old", "untouched", "mapped"}
    assert set(measures["ndcg"]) == {"old", "untouched", "mapped", "new"}
    assert (folder / details["table"]).read_text().count("| ") >= 5
