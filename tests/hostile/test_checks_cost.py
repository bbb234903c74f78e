"""A check reads each thing once, and stops at a model larger than the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge import load_plugins, parse_recipe
from emberge.data import catalogue
from emberge.recipes import check_recipe
from emberge_data import JsonLines

from tests.support.bench import write_catalogue, write_pairs

SEARCHES = """steps:
  found:
    foreach: {seed: [1, 2, 3, 4]}
    find_weights:
      models: [./a, ./b]
      data: {path: ./sets, only: [retrieval, sts], split: test}
      seed: $seed
  member:
    foreach: {seed: [1, 2, 3, 4]}
    train:
      model: ./a
      data: {path: ./pairs.jsonl.gz, task: sts}
      backbone: text_encoder
      loss: cosent
      sampler: batch_shuffle
      seed: $seed
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_catalogue(tmp_path / "sets")
    write_pairs(tmp_path / "pairs.jsonl.gz")
    return tmp_path


def test_steps_that_share_a_catalogue_and_files_read_them_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    rows, parsed = JsonLines.rows, catalogue.read_yaml

    def counted_rows(self: JsonLines, path: Path) -> Iterator[Any]:
        for row in rows(self, path):
            read[path.name] += 1
            yield row

    def counted_parse(*given: Any, **more: Any) -> Any:
        read["catalogue"] += 1
        return parsed(*given, **more)

    monkeypatch.setattr(JsonLines, "rows", counted_rows)
    monkeypatch.setattr(catalogue, "read_yaml", counted_parse)
    recipe = parse_recipe(SEARCHES, load_plugins(), path=place / "recipe.yaml")
    check_recipe(recipe, load_plugins(), deep=False)
    assert read["catalogue"] == 1
    assert read["pairs.jsonl.gz"] == 24  # its first rows
