"""Weights that a strategy computed are shown with the merge: a heat map in the page, a table in both."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest
from emberge import load_plugins, parse_recipe, run_recipe

from tests.support import tiny

RECIPE = """
steps:
  fused:
    merge:
      base: {base}
      models: [{{model: {a}, group: ir}}, {{model: {b}, group: ir}}, {{model: {c}, group: sts_b}}]
      strategy: [group, layer_softmax]
  stocked:
    merge: {{base: {base}, models: [{a}, {b}], strategy: model_stock}}
  averaged:
    merge: {{models: [{a}, {b}], strategy: linear}}
  adapted:
    merge_adapters: {{base: {base}, models: [{a}, {b}], strategy: layer_softmax, rank: 4}}
  page:
    report: {{of: [$fused, $stocked, $averaged, $adapted]}}
"""
LAYERS = ["embeddings", "layers.0", "layers.1", "pooler"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("weights")
    base = tiny.checkpoint(root / "base", "bert", num_hidden_layers=2)
    for i, name in enumerate("abc", 1):
        tiny.checkpoint(root / name, "bert", seed=i, like=base, noise=0.05 * i, num_hidden_layers=2)
    text = RECIPE.format(**{name: root / name for name in ("base", "a", "b", "c")})
    plugins = load_plugins()
    recipe = parse_recipe(text, plugins, path=root / "recipe.yaml")
    return {k: Path(v) for k, v in run_recipe(recipe, root / "out", plugins, quiet=True).items()}


def computed(folder: Path) -> dict[str, dict[str, float]]:
    details = json.loads((folder / "artifact.json").read_text())["details"]
    return dict(details.get("weights_by_layer", {}))


def figures(page: Path) -> dict[str, ElementTree.Element]:
    """The parts of a page by their headings."""
    text = page.read_text().removeprefix("<!DOCTYPE html>\n")
    parts = ElementTree.fromstring(text).iter("div")
    return {str(part.findtext("h3")): part for part in parts if part.find("h3") is not None}


@pytest.mark.parametrize(
    ("step", "labels"),
    [
        ("fused", ["ir", "sts_b"]),
        ("stocked", ["mean of the models"]),
        ("adapted", ["a", "b"]),
    ],
)
def test_a_page_shows_the_weights_of_each_layer(
    step: str, labels: list[str], results: Mapping[str, Path]
) -> None:
    found = computed(results[step])
    assert sorted(found) == LAYERS
    assert all(list(weights) == labels for weights in found.values())
    part = figures(results["page"] / "report.html")[f"{step}: weights by layer"]
    rows = [["".join(cell.itertext()) for cell in row] for row in part.iter("tr")]
    assert [row[0] for row in rows] == ["", "embeddings", "0", "1", "pooler"]
    assert rows[0][1:] == labels
    for (_, *numbers), layer in zip(rows[1:], LAYERS, strict=True):
        for label, written in zip(labels, numbers, strict=True):
            assert float(written) == pytest.approx(found[layer][label], abs=1e-3)


def test_what_was_not_computed_is_not_shown(results: Mapping[str, Path]) -> None:
    assert computed(results["averaged"]) == {}
    assert "averaged: weights by layer" not in figures(results["page"] / "report.html")


def test_weights_are_shown_once(results: Mapping[str, Path]) -> None:
    """Neither as a detail of the page nor in the card's block of options."""
    assert "weights_by_layer" not in (results["fused"] / "README.md").read_text()
    page = (results["page"] / "report.html").read_text()
    assert page.count("weights by layer") == 3
    assert page.count("fused: weights by layer") == 1
