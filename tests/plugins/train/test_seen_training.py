"""Numbers that a training logs, from a recipe to a file."""

from __future__ import annotations

import json
from pathlib import Path

from emberge import load_plugins

from tests.support.recipe_runs import run_checked
from tests.support.training_data import write_training_sets

RECIPE = """
steps:
  member:
    train:
      model: ./base
      data:
        - {path: ./find.jsonl, task: retrieval}
        - {path: ./alike.jsonl, task: sts}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: {default: {infonce: {temperature: 0.1}}, by_task: {sts: cosent}}
      learning_rate: 1.0e-3
      token_budget: 80
      max_steps: 8
      logging_steps: 4
"""


def test_numbers_of_every_kind_are_logged_by_step(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "base").symlink_to(bert)
    write_training_sets(tmp_path)
    result = run_checked(tmp_path, RECIPE, load_plugins(block=()))["member"]
    lines = (result / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["at"] for row in rows} == {4, 8}
    last = {row["name"]: row["value"] for row in rows if row["at"] == 8}
    tasks = {name.removeprefix("task_loss/") for name in last if name.startswith("task_loss/")}
    assert tasks == {"retrieval", "sts"}
    assert last["task_loss/sts"] == last["loss/alike"]
    assert 0 <= last["padding_share"] < 1
    assert last["tokens_per_second"] > 0
    # This process holds torch, and less than the machine could.
    assert 0.05 < last["memory_gib"] < 1000
    assert "gpu_memory_gib" not in last
