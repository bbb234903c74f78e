"""A few lines of nested aliases are refused wherever YAML is read; aliases that people write are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import DataError, Problem, RecipeError, load_plugins, load_recipe
from emberge.data import load_catalogue
from emberge.yaml_nodes import read_yaml


def nested(depth: int, width: int = 9, key: str = "x-a{}") -> list[str]:
    """Lines of which each repeats the one before `width` times: width ** (depth + 1) values at the end."""
    lines = [f"{key.format(0)}: &a0 [{', '.join(['x'] * width)}]"]
    for level in range(1, depth + 1):
        inside = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"{key.format(level)}: &a{level} [{inside}]")
    return lines


def problems(*lines: str) -> list[Problem]:
    found: list[Problem] = []
    read_yaml("\n".join(lines), str, found)
    return found


def test_aliases_count_as_if_written_out_at_any_depth_also_in_merges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emberge.yaml_nodes.MOST_VALUES", 1000)
    lines = [f"a: &a [{', '.join(['x'] * 99)}]", f"b: [{', '.join(['*a'] * 8)}]"]
    assert problems(*lines) == []
    assert "repeat fewer" in problems(*lines, "c: *a", "d: *a")[0].message
    assert problems(*nested(60))
    assert problems(*nested(1)) == []
    lines = ["- &m0 {x: 1, y: 2}"]
    for level in range(1, 9):
        inside = ", ".join([f"*m{level - 1}"] * 9)
        lines.append(f"- &m{level} {{<<: [{inside}]}}")
    assert problems(*lines)


@pytest.mark.parametrize(
    "lines",
    [
        ["seed: 0", *nested(8), "steps: {m: {merge: {models: *a8, strategy: linear}}}"],
        ["merge_method: linear", *nested(8, key="models{}"), "models: *a8"],
    ],
    ids=["ours", "mergekit's"],
)
def test_a_recipe_of_nested_aliases_is_refused(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, load_plugins())
    (only,) = caught.value.problems
    assert only.where == f"{path}:1"
    assert "alias" in only.message


def test_aliases_that_people_write_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    shared = ["x-models: &models [./a, ./b, ./c]", "x-more: &more {strategy: linear}", "steps:"]
    steps = [
        f"  m{i}: {{merge: {{models: *models, <<: *more, out_dtype: float32, max_shard_size: {i}MB}}}}"
        for i in range(1, 200)
    ]
    path.write_text("\n".join([*shared, *steps]))
    assert len(load_recipe(path, load_plugins()).steps) == 199


def test_a_catalogue_of_nested_aliases_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "datasets.yaml"
    path.write_text("\n".join([*nested(8), "train: *a8"]))
    with pytest.raises(DataError, match=rf"{path}:1: .*alias"):
        load_catalogue(path)
