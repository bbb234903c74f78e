"""A search for a learning rate: trainings at log-spaced rates, and the rate of the least loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge import (
    Machine,
    Plugins,
    RecipeError,
    parse_recipe,
    run_recipe,
)

from tests.support import tiny
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.result_folders import read_details
from tests.support.training_data import texts

# Ten rates would do the same; three are quicker, the last of which is far too high.
RECIPE = """
x-training: &training
  model: ./reader
  data: [{path: ./english.jsonl}, {path: ./code.jsonl}]
  loss: {mlm: {share: 0.3}}
  backbone: {text_encoder: {pooling: mean}}
  sampler: {mixture: {shares: {english: 0.8}, batch_tokens: 400}}
  max_length: 16
steps:
  trial:
    foreach: {rate: [1.0e-6, 0.001, 1.0]}
    train:
      <<: *training
      max_steps: 20
      learning_rate: $rate
      schedule: warmup_stable_decay
  search:
    select:
      models: $trial
      evaluators: mean_loss
      metric: loss
      top: 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rates")
    tiny.transformer(root / "reader", "AutoModelForMaskedLM", "bert")
    for name in ("english", "code"):
        made = texts(60)
        rows = [json.dumps({"text": made[row].anchor}) for row in range(len(made))]
        (root / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return root


@pytest.mark.slow
def test_the_training_of_the_least_loss_is_chosen(place: Path, plugins: Plugins) -> None:
    results = run_checked(place, RECIPE, plugins)
    trials = {n: read_details(made) for n, made in results.items() if n.startswith("trial")}
    assert [one.learning_rate for one in trials.values()] == [1e-6, 1e-3, 1.0]
    least = min(trials.values(), key=lambda one: one.last_loss)
    assert least.learning_rate == 1e-3
    (described,) = read_details(results["search"])["chosen"].values()
    assert described["value"] == least.last_loss


def test_a_model_that_no_training_left_is_found_before_any_work(
    place: Path, plugins: Plugins
) -> None:
    found = find_faults(
        place, RECIPE.replace("models: $trial", "models: [$trial, ./reader]"), plugins
    )
    assert "reader" in found
    assert "step train" in found


def test_a_loss_without_data_is_refused(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace(
        "evaluators: mean_loss", "evaluators: {mean_loss: {loss: {mlm: {share: 0.3}}}}"
    )
    with pytest.raises(RecipeError, match=r"r\.yaml:20: .*name held-out data"):
        parse_recipe(text, plugins, path=place / "r.yaml")


def test_trainings_of_other_lengths_are_warned_about(
    place: Path, plugins: Plugins, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RECIPE.replace("rate: [1.0e-6, 0.001, 1.0]", "steps: [2, 3]")
    text = text.replace("max_steps: 20", "max_steps: $steps").replace(
        "$rate\n      sch", "0.001\n      sch"
    )
    recipe = parse_recipe(text, plugins, path=place / "r.yaml")
    run_recipe(recipe, place / "apart", plugins, machine=Machine())
    shown = capsys.readouterr()
    assert "do not compare" in shown.out + shown.err
