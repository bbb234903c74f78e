"""The `find_weights` step: from a recipe to weights that a merge takes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import (
    EmbergeError,
    Plugins,
)
from emberge.model_folder import hash_model
from emberge_merge import FoundWeights
from safetensors.torch import load_file, save_file

from tests.support.recipe_runs import find_faults, run_checked
from tests.support.step_reports import assert_never_decreases, record_reports
from tests.support.tolerance import assert_combined

RECIPE = """
steps:
  found:
    find_weights:
      models: [./a, ./b, ./c]
      base: ./base
      data: {path: ./sets, only: [asked, likeness]}
      candidates: 60
  merged:
    merge: {models: [./base, ./a, ./b, ./c], weights: $found}
"""


def test_a_merge_uses_the_weights_that_were_found(
    place: Path, plugins: Plugins, bert: Path, berts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real merges are foretold, and progress is by member and merge."""
    reports = record_reports(monkeypatch, "found")
    results = run_checked(place, RECIPE, plugins)
    found = FoundWeights.read(results["found"])
    assert sum(found.weights.values()) == pytest.approx(1)
    weights = [found.weights[hash_model(folder)] for folder in (bert, *berts)]
    norm = "embeddings.LayerNorm.weight"
    states = [load_file(f / "model.safetensors")[norm] for f in (bert, *berts, results["merged"])]
    assert_combined(states[-1], states[:-1], weights)

    facts = found.facts
    assert [one["name"] for one in facts["members"]] == ["a", "b", "c", "base"]
    assert len(facts["merges"]) == 5
    # Siblings this near are their ensemble: within a query or two of the 120.
    assert all(
        one["measured"] == pytest.approx(one["predicted"], abs=0.02) for one in facts["merges"]
    )
    equal = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3, "base": 0}
    assert facts["merges"][0]["weights"] == pytest.approx(equal)

    assert_never_decreases(reports, 9, "models")
    assert reports[-1][0] == 9
    notes = [note for *_, note in reports]
    assert "model 2 of 9: b · set 2 of 2: likeness-dev" in notes
    assert "model 5 of 9: 0.33 a, 0.33 b, 0.33 c · set 1 of 2: asked-dev" in notes


def test_members_of_another_tokenizer_are_refused(
    place: Path, plugins: Plugins, bert: Path
) -> None:
    other = shutil.copytree(bert, place / "other")
    text = (other / "tokenizer.json").read_text()
    content = json.loads(text)
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[10:12]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert "one tokenizer" in find_faults(place, RECIPE.replace("./c]", "./other]"), plugins)


def test_weights_of_other_models_are_refused(place: Path, plugins: Plugins, bert: Path) -> None:
    other = shutil.copytree(bert, place / "changed")
    state = load_file(other / "model.safetensors")
    state["embeddings.LayerNorm.weight"] += 1
    save_file(state, other / "model.safetensors", metadata={"format": "pt"})
    folders = {name: place / name for name in ("a", "b", "base")}
    prints = {name: hash_model(folder) for name, folder in folders.items()}
    found = FoundWeights(
        weights=dict(zip(prints.values(), (0.5, 0.3, 0.2), strict=True)),
        names={content: name for name, content in prints.items()},
    )
    found.write(place)
    merge = "steps: {{merged: {{merge: {{models: [{}], weights: ./weights.json}}}}}}"
    run_checked(place, merge.format("./b, ./base, ./a"), plugins)
    for models, said in (
        ("./a, ./b, ./changed", "'changed' is none of 'a', 'b', 'base'"),
        ("./a, ./b", "0.2 to 'base'"),
    ):
        shutil.rmtree(place / "out")
        with pytest.raises(EmbergeError, match=said):
            run_checked(place, merge.format(models), plugins)
