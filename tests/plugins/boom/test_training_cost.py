"""What ensembles cost: BOOM's own numbers, and what a run measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from emberge import Plugins, load_plugins

from tests.plugins.boom.recipes import artifact, details, run, write_data


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


@pytest.fixture(scope="module")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and data of 100 and 40 rows."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "bert").symlink_to(bert)
    write_data(folder, find=100, alike=40)
    return folder


MERGES = """
  members:
    foreach: {ratio: [0.2, 0.4, 0.6, 0.8, 1.0]}
    train: {<<: *training, sampler: [bagging: $ratio, *batches]}
  full:
    train: {<<: *training, seed: 7, sampler: [*batches]}
  boom:
    merge: {models: $members, weights: size, strategy: multi_slerp}
  both:
    merge: {models: [$boom, $full], weights: size, strategy: linear}
  again:
    merge: {models: [$boom, $both], strategy: linear}
"""


@pytest.fixture(scope="module")
def made(place: Path, plugins: Plugins) -> Mapping[str, Path]:
    return run(place, MERGES, plugins)


@pytest.mark.slow
def test_a_run_tells_rows_and_time(made: Mapping[str, Path]) -> None:
    cost = details(made["boom"])["training_cost"]
    assert cost["times"] == 3.0
    assert (cost["rows"], cost["of"]) == (420, 140)
    assert cost["members"] == {f"members.ratio={r}": r for r in (0.2, 0.4, 0.6, 0.8, 1.0)}
    assert cost["examples"] == 5 * 2 * 4, "five trainings of two steps of four rows"
    assert cost["seconds"] > 0
    assert cost["cpu_seconds"] > 0
    assert artifact(made["boom"]).size == 420


def test_bags_weigh_by_their_sizes(made: Mapping[str, Path]) -> None:
    weights = details(made["boom"])["weights"]  # methods' N weights of the five bags
    expected = [0.066667, 0.133333, 0.2, 0.266667, 0.333333]
    assert list(weights.values()) == pytest.approx(expected, abs=1e-6)
