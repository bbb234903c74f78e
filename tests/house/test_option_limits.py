"""Numbers beyond an option's limits are refused where a recipe is read, once for all steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError, load_plugins
from emberge.recipes import load_recipe

BEYOND = {
    "a forgetting below 0": (
        "evaluate: {models: [./m], evaluators: [mteb], require: {forgetting: -1.0}}",
        "forgetting",
    ),
    "a jaccard above 1": ("deduplicate: {data: [a.jsonl], jaccard: 1.5}", "jaccard"),
    "a jaccard of tests above 1": (
        "decontaminate: {data: [a.jsonl], eval_sets: [{path: ./e}], jaccard: 2.0}",
        "jaccard",
    ),
    "a share of all rows": ("split: {data: [a.jsonl], share: 1.0}", "share"),
    "no rows": ("split: {data: [a.jsonl], rows: 0}", "rows"),
    "texts of no token": (
        "score_pairs: {data: [a.jsonl], teacher: {model: ./m, max_length: 0}}",
        "max_length",
    ),
    "a warm-up of all steps": (
        "evaluate: {models: [./m], evaluators: [{fine_tuned: {train: a, test: b, warmup: 1.0}}]}",
        "warmup",
    ),
    "a temperature of 0": (
        "train: {model: ./m, data: [a.jsonl], loss: {infonce: {temperature: 0}}}",
        "temperature",
    ),
    "batches of nothing for one task": (
        "train: {model: ./m, data: [a.jsonl], sampler: {batch_shuffle: {batch_size: {by_task: {sts: 0}}}}}",
        "batch_size",
    ),
    "bags of sixty times the rows": (
        "train: {model: ./m, data: [a.jsonl], sampler: [{bagging: {ratio: 60}}, batch_shuffle]}",
        "ratio",
    ),
    "no warm-up below 0": (
        "train: {model: ./m, data: [a.jsonl], warmup_steps: -1}",
        "warmup_steps",
    ),
    "a misspelt task": (
        "train: {model: ./m, data: [a.jsonl], sampler: [{keep: {tasks: retrievel}}, batch_shuffle]}",
        "tasks",
    ),
    "a rate of 0": (
        "evaluate: {models: [./m], evaluators: [{fine_tuned: {train: a, test: b, learning_rate: [0.0]}}]}",
        "learning_rate",
    ),
}


def test_a_number_beyond_its_limits_is_refused_with_its_place(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    for case, (step, option) in BEYOND.items():
        recipe.write_text(f"steps: {{s: {{{step}}}}}", "utf-8")
        with pytest.raises(RecipeError) as caught:
            load_recipe(recipe, load_plugins(block=()))
        said = [line for line in str(caught.value).splitlines() if f"'{option}'" in line]
        assert len(said) == 1, f"{case}: {caught.value}"
        assert ":1:" in said[0], case
        assert "needs" in said[0], case
