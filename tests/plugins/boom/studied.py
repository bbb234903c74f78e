"""A tiny catalogue of four datasets and the recipe of a study on them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

from emberge import Example
from emberge_boom.study import Study

from tests.support.training_data import InMemory, dataset, retrieval, similarity

RECIPE = """
seed: 3
steps:
  study:
    interactions:
      model: ./model
      data: {path: data/datasets.yaml, only: [find, seek, like, name]}
      loss: {default: infonce, by_task: {sts: cosent}}
      sampler: {batch_shuffle: {batch_size: 4}}
      learning_rate: 1e-3
"""


def study_data(folder: Path, model: Path) -> Path:
    """Lay a tiny model and a catalogue of sets of 40, 32, 24 and 16 rows into a folder."""
    shutil.copytree(model, folder / "model")
    (folder / "data").mkdir()
    sets = [retrieval(40), retrieval(32, name="seek"), similarity(24, name="like"), _labels(16)]
    lines = ["train:"]
    for one in sets:
        name, task = one.info.name, one.info.task
        rows = [json.dumps(_row(example)) for example in one.rows]
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        lines.append(f"- {{name: {name}, path: {name}.jsonl, task: {task}}}")
    (folder / "data" / "datasets.yaml").write_text("\n".join(lines) + "\n")
    return folder


def _labels(size: int) -> InMemory:
    words = ("bank card", "weather", "music", "travel")
    rows = [
        Example(f"the {words[i % 4]} {i}", (f"a {words[i % 4]}",), (words[(i + 1) % 4],))
        for i in range(size)
    ]
    return dataset("name", "classification", rows)


def _row(example: Example) -> dict[str, object]:
    row: dict[str, object] = {"query": example.anchor, "pos": list(example.positives)}
    if example.negatives:
        row["neg"] = list(example.negatives)
    if example.positive_scores:
        row["pos_scores"] = list(example.positive_scores)
    return row


NAMES = ("a", "b", "c", "d")


SINGLES = dict(zip(NAMES, (1.0, 1.2, 2.0, 0.8), strict=True))


TOGETHER = dict(
    zip(itertools.combinations(NAMES, 2), (1.056, 1.32, 0.855, 1.44, 0.95, 1.47), strict=True)
)


def worked() -> Study:
    """T-A11: four datasets."""
    return Study(
        names=NAMES,
        tasks=dict.fromkeys(NAMES, "sts"),
        sizes=dict.fromkeys(NAMES, 10),
        rows=10,
        alone=SINGLES,
        joint=TOGETHER,
    )
