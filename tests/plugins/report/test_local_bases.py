"""Models in folders beside a recipe are found again after the run: for licences, and for distances."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import Machine, load_plugins, load_recipe, run_recipe
from emberge.results import read_artifact

from tests.support.tiny import WORDS

RECIPE = """
seed: 0
steps:
  tuned:
    train:
      model: ../models/small
      data: [{path: pairs.jsonl, task: retrieval, source: {licence: cc-by-4.0}}]
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: {default: infonce}
      learning_rate: 1e-3
      max_steps: 2
  soup:
    merge: {models: [$tuned, ../models/other], base: ../models/small, strategy: task_arithmetic}
  page:
    report: {of: [$tuned, $soup]}
"""


@pytest.fixture(scope="module")
def out(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of the recipe left, started from a folder that is not the recipe's."""
    place = tmp_path_factory.mktemp("project")
    for name, folder, licence in (("small", bert, "mit"), ("other", berts[0], "apache-2.0")):
        shutil.copytree(folder, place / "models" / name)
        (place / "models" / name / "README.md").write_text(f"---\nlicense: {licence}\n---\n")
    (place / "recipes").mkdir()
    rows = [{"anchor": f"find {w}", "positive": f"the {w} of a {v}"} for w, v in _pairs()]
    (place / "recipes" / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (place / "recipes" / "r.yaml").write_text(RECIPE)
    plugins = load_plugins(block=())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        recipe = load_recipe(place / "recipes" / "r.yaml", plugins)
        run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True)
    return place / "out"


def _pairs() -> list[tuple[str, str]]:
    return list(zip(WORDS[:24], WORDS[24:48], strict=True))


def test_a_card_states_the_licence_of_a_folder_beside_the_recipe(out: Path) -> None:
    tuned = (out / "tuned" / "README.md").read_text()
    assert "| small | – | mit |" in tuned
    assert "small: mit" in tuned
    assert "| pairs | retrieval | 24 | cc-by-4.0 |" in tuned
    assert "license:" not in tuned.split("---")[1]  # the data's is another
    soup = (out / "soup" / "README.md").read_text()
    assert "small: mit" in soup
    assert "other: apache-2.0" in soup


def test_distances_are_measured_from_a_folder_beside_the_recipe(out: Path) -> None:
    page = next((out / "page").glob("*.html")).read_text()
    assert "Distance from small" in page
    assert "its base is not known" not in page
    assert "there is no such folder" not in page


def test_a_training_says_where_its_base_lay_in_the_recipes_words(out: Path) -> None:
    artifact = read_artifact(out / "tuned")
    assert artifact is not None
    assert artifact.details["base"] == "small"
    assert artifact.details["base_reference"] == "../models/small"
