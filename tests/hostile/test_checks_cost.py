"""A check reads each thing once and stops at sizes that no machine has, however many steps there are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError, load_plugins, parse_recipe
from emberge.data import catalogue
from emberge.model_folder import Checkpoint, count_parameters
from emberge.recipes import check_recipe
from emberge_data import JsonLines

from tests.support.bench import write_catalogue, write_pairs

SEARCHES = """steps:
  found:
    foreach: {seed: [1, 2, 3, 4]}
    find_weights:
      models: [./a, ./b]
      data: {path: ./sets, only: [retrieval, sts], split: test}
      elsewhere: {path: ./sets, only: [pair_classification], split: test}
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
    assert read["pairs.jsonl.gz"] == 2 * 24  # its first rows, and all of them for the preview


@pytest.mark.parametrize(
    "size",
    [
        "hidden_size: 10000000",
        "hidden_size: 0",
        "vocab_size: 100000000000",
        "num_hidden_layers: -1",
    ],
)
def test_a_model_of_impossible_size_is_refused_before_it_is_built(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    monkeypatch.setattr("emberge_encoder.token_head.language_model_loader", built.append)
    found = errors(f"{{model_type: bert, {size}}}", tmp_path)
    assert [one for one in found if size.partition(":")[0] in one and "r.yaml:4" in one]
    assert built == []


def test_a_model_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    size = "hidden_size: 131072, num_attention_heads: 16, num_hidden_layers: 1"
    config = f"{{model_type: bert, {size}, intermediate_size: 1048576}}"
    (found,) = errors(config, tmp_path)
    assert "of memory; make it smaller" in found


def test_a_size_of_a_part_of_a_config_is_looked_at_too(tmp_path: Path) -> None:
    found = errors("{model_type: bert, text_config: {hidden_size: 10000000}}", tmp_path)
    assert found
    assert all("hidden_size" in one for one in found)


@pytest.mark.parametrize("part", ["num_hidden_layers", "inner.n_layer", "depths"])
def test_a_stranger_s_config_of_endless_layers_is_not_built_to_count_it(
    part: str, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"model_type": "bert"}
    *outer, name = part.split(".")
    endless = 3_000_000 if name != "depths" else [2, 3_000_000]
    config.update({outer[0]: {name: endless}} if outer else {name: endless})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"{name} is 3,000,000; it must be from 1 to 1,024"):
        count_parameters(Checkpoint(tmp_path))


def errors(config: str, folder: Path) -> list[str]:
    (folder / "texts.jsonl").write_text('{"text": "a list"}\n')
    data = "{path: ./texts.jsonl, task: text}"
    text = f"steps:\n  a:\n    random_model:\n      config: {config}\n      data: {data}\n"
    recipe = parse_recipe(text, load_plugins(), path=folder / "r.yaml")
    return [str(one) for one in check_recipe(recipe, load_plugins(), deep=False).errors]
