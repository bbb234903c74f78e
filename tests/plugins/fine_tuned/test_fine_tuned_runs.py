"""An evaluation by fine-tuning as a run: its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge import Plugins
from emberge_evaluate import read_scores

from tests.support import tiny
from tests.support.recipe_runs import run_checked
from tests.support.tuned_sets import write_sets

TASKS = """
          - {name: subject, train: ./train.jsonl, dev: ./dev.jsonl, test: ./test.jsonl}
          - name: grade
            train: ./train.jsonl
            test: ./test.jsonl
            head: regression
            label: grade
            start: subject"""


@pytest.fixture
def place(tmp_path: Path, berts: list[Path]) -> Path:
    """A folder with sets, two models that attend to all tokens, and a causal one."""
    write_sets(tmp_path)
    tiny.checkpoint(tmp_path / "causal", "qwen3")
    for name, bert in zip(("one", "two"), berts, strict=False):
        (tmp_path / name).symlink_to(bert)
    return tmp_path


def recipe(more: str = "", tasks: str = TASKS) -> str:
    return f"""
seed: 5
steps:
  scores:
    evaluate:
      models: [./causal, ./one, ./two]
      evaluators:
        fine_tuned:
          steps: 12
          batch_size: 8
          learning_rate: [1e-3, 1e-2]
          seeds: [1, 2]
          eval_steps: 4
          {more}
          data:{tasks}
"""


def result(place: Path, out: str, plugins: Plugins, text: str) -> Path:
    """The folder of the run's scores."""
    return run_checked(place, text, plugins, out)["scores"]


@pytest.mark.slow
def test_seeds_are_one_arm(plugins: Plugins, place: Path) -> None:
    made = result(place, "out", plugins, recipe())
    scores = read_scores(made)
    assert list(scores.models) == [f"{m}#{s}" for m in ("causal", "one", "two") for s in (1, 2)]
    pooled = scores.pooled
    assert pooled is not None
    assert list(pooled.models) == ["causal", "one", "two"]
    for task in ("subject", "grade"):
        mean = sum(scores.values[f"one#{seed}"][task] for seed in (1, 2)) / 2
        assert pooled.values["one"][task] == pytest.approx(mean)
        low, high = pooled.find_interval("one", task) or (1.0, 0.0)
        assert low <= mean <= high
    ranks = json.loads((made / "scores.json").read_text())["ranks"]
    assert ranks == pooled.ranks
    assert len(ranks) == 3
    kept = [
        json.loads((made / "results" / "one" / f"subject-{seed}.json").read_text())
        for seed in (1, 2)
    ]
    assert all(one["learning_rate"] in (1e-3, 1e-2) for one in kept)
    assert all([step for step, *_ in one["curve"]] == [4, 8, 12] for one in kept)
