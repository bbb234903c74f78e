"""Texts that Python code gives as three dicts are scored, and scored once for equal texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge import run_recipe

QUERIES = {f"q{n}": f"question number {n}" for n in range(6)}
CORPUS = {f"d{n}": f"answer number {n}" for n in range(9)}


def recipe(model: Path, relevant: Any) -> dict[str, Any]:
    data = {"name": "faq", "queries": QUERIES, "corpus": CORPUS, "relevant": relevant}
    evaluate = {"models": model, "evaluators": {"mteb": {"data": data}}}
    return {"steps": {"scores": {"evaluate": evaluate}}}


def test_three_dicts_are_scored_and_kept_by_content(bert: Path, tmp_path: Path) -> None:
    right = {f"q{n}": {f"d{n}", f"d{n + 1}"} for n in range(6)}
    (first,) = run_recipe(recipe(bert, right), tmp_path / "out", quiet=True).values()
    assert first.scores is not None
    written = first.path.resolve()
    as_lists = {f"q{n}": [f"d{n}", f"d{n + 1}"] for n in range(6)}
    (again,) = run_recipe(recipe(bert, as_lists), tmp_path / "out", quiet=True).values()
    assert again.path.resolve() == written
    other = {f"q{n}": {f"d{n}"} for n in range(6)}
    (changed,) = run_recipe(recipe(bert, other), tmp_path / "out", quiet=True).values()
    assert changed.path.resolve() != written
    assert "| faq (ndcg_at_10, in) |" in (changed.path / "scores.md").read_text()
