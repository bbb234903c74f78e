"""Siblings of one upcycling merge; models that were upcycled apart are refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import check_recipe, load_plugins, parse_recipe, run_recipe

from tests.support.routable import dense

UPCYCLED = """
steps:
  one:
    upcycle: {model: ./dense, experts: 4, layers: all, seed: 1OPTIONS}
  other:
    upcycle: {model: ./dense, experts: 4, layers: all, seed: 2OPTIONS}
  shaken:
    upcycle: {model: ./dense, experts: 4, layers: all, seed: 1, noise: 0.1OPTIONS}
"""
MERGED = """
steps:
  merged:
    merge: {models: [./out/one, ./out/OTHER]}
"""
FORMATS = [
    ("qwen3", ""),
    ("llama", ", target: mixtral"),
    ("llama", ", target: qwen2_moe"),
    ("granite", ""),
    ("bert", ""),
]


def upcycled(place: Path, kind: str, options: str) -> None:
    dense(place / "dense", kind)
    plugins, text = load_plugins(), UPCYCLED.replace("OPTIONS", options)
    run_recipe(
        parse_recipe(text, path=place / "u.yaml", plugins=plugins), place / "out", plugins=plugins
    )


def problems(place: Path, other: str) -> list[str]:
    plugins, text = load_plugins(), MERGED.replace("OTHER", other)
    recipe = parse_recipe(text, path=place / "m.yaml", plugins=plugins)
    report = check_recipe(recipe, out=place / "merged", plugins=plugins)
    return [str(one) for one in report.problems if one.severity == "error"]


@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_models_that_were_upcycled_apart_are_refused_before_work(
    kind: str, options: str, tmp_path: Path
) -> None:
    upcycled(tmp_path, kind, options)
    found = problems(tmp_path, "other")
    assert len(found) == 1
    # The place, the tensor, and the remedy.
    assert "m.yaml:4" in found[0]
    assert "layers.0" in found[0] or "layer.0" in found[0]
    assert "downcycle" in found[0]
    # The same routers, and other experts: a sibling.
    assert problems(tmp_path, "shaken") == []
    assert not (tmp_path / "merged").exists()
