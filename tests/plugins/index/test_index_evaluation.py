"""A recipe from a fitted translation to the gate on the gain that a translated index keeps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from emberge import (
    Machine,
    RequirementError,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)

from tests.support.bench import write_catalogue
from tests.support.tiny import WORDS

RECIPE = """
steps:
  bridge:
    translate: {old: ./old, new: ./new, data: texts.jsonl}
  scores:
    evaluate:
      models: [./old, ./new]
      evaluators:
        mteb:
          data: {path: %s, only: [retrieval]}
          documents_of:
            - ./old
            - {model: ./old, translations: [$bridge]}
            - {model: ./old, translations: [$bridge], anew: 30}
      require: [{model: ./new, on_index_of: ./old, index: %s, gain_kept: 0.7, confidence: 0.95}]
"""


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    (tmp_path / "old").symlink_to(bert)
    (tmp_path / "new").symlink_to(berts[0])
    rng = random.Random(0)
    lines = [json.dumps({"text": " ".join(rng.choices(WORDS, k=8))}) for _ in range(200)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_old_translated_and_refreshed_indexes_stand_in_one_table(place: Path) -> None:
    plugins = load_plugins(block=())
    catalogue = write_catalogue(place / "sets", ("retrieval",))
    recipe = parse_recipe(
        RECIPE % (catalogue, "old by bridge"), plugins, path=place / "recipe.yaml"
    )
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    # Tiny models of noise have no clear gain over each other, so that no share of it can be required.
    with pytest.raises(RequirementError, match="no clear gain"):
        run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True)
    found = json.loads((place / "out" / "scores" / "scores.json").read_text())
    names = [model["name"] for model in found["models"]]
    assert names == [
        "old",
        "new",
        *(f"new on old{by}" for by in ("", " by bridge", " by bridge, 30 anew")),
    ]
    # All 30 documents were embedded anew.
    assert found["scores"]["new on old by bridge, 30 anew"] == found["scores"]["new"]


def test_a_gate_on_an_index_that_nothing_is_scored_on_is_refused_by_check(place: Path) -> None:
    plugins = load_plugins(block=())
    catalogue = write_catalogue(place / "sets", ("retrieval",))
    recipe = parse_recipe(RECIPE % (catalogue, "old by brigde"), plugins, path=place / "r.yaml")
    (error,) = check_recipe(recipe, plugins).errors
    assert "old by bridge" in str(error)
