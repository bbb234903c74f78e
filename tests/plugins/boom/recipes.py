"""Small data and recipes around bags, to check and to run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import Plugins

from tests.support.recipe_runs import run_checked
from tests.support.result_folders import artifact_of
from tests.support.tiny import WORDS

HEAD = """
seed: 0
x-training: &training
  model: ./bert
  data: [{path: find.jsonl, task: retrieval}, {path: alike.jsonl, task: retrieval}]
  loss: infonce
  hard_negatives: 0
  max_length: 16
  max_steps: 2
x-batches: &batches
  batch_shuffle: {batch_size: 4}
steps:
"""


def write_data(folder: Path, **sizes: int) -> None:
    """A file of pairs for every name."""
    for name, size in sizes.items():
        rows = [
            {"query": f"find {_word(i)} {_word(i + 7)}", "pos": [f"the {_word(i)} {_word(i + 3)}"]}
            for i in range(size)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _word(i: int) -> str:
    return WORDS[i * 5 % len(WORDS)]


def run(
    place: Path, steps: str, plugins: Plugins, head: str = HEAD, out: str = "out"
) -> Mapping[str, Path]:
    """The results of a recipe by step."""
    return run_checked(place, head + steps, plugins, out)


def details(folder: Path) -> Any:
    return artifact_of(folder).details
