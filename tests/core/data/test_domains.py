"""A catalogue says whether a batch is the negatives of its sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataRef, PerDataset
from emberge.data import load_datasets
from emberge.training import BatchPlan
from emberge_data import JsonLines
from emberge_train import BatchShuffle

READERS = (JsonLines(),)
TEXT = """\
train:
- name: faq
  file: faq.jsonl
  task: retrieval
  negatives: hard_only
- name: quiet
  file: faq.jsonl
  task: retrieval
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "datasets.yaml").write_text(TEXT)
    rows = [{"query": f"q{i}", "pos": [f"p{i}"], "neg": [f"n{i}"]} for i in range(8)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def policies(folder: Path, **options: object) -> dict[str, bool]:
    """By dataset, whether a batch's other texts are negatives in a plan."""
    entry = DataEntry(path=DataRef(str(folder)), only=("faq", "quiet"))
    datasets = load_datasets([entry], readers=READERS, resolve=lambda r: Path(r.text))
    pool = {dataset.info: range(len(dataset)) for dataset in datasets}
    sampler = BatchShuffle(batch_size=PerDataset(default=4))
    negatives: PerDataset[Any] = PerDataset(**options)  # type: ignore[arg-type]
    names = [info.name for info in pool]
    plan = BatchPlan(pool, [sampler], seed=0, negatives=negatives, in_batch_datasets=names)
    return {part.dataset: part.in_batch for batch in plan for part in batch.parts}


def test_the_recipe_beats_the_catalogue_and_that_the_losses(folder: Path) -> None:
    assert policies(folder) == {"faq": False, "quiet": True}
    assert policies(folder, by_dataset={"faq": "in_batch"}) == {"faq": True, "quiet": True}
    assert policies(folder, default="hard_only") == {"faq": False, "quiet": False}
    assert policies(folder, default="auto") == {"faq": False, "quiet": True}
