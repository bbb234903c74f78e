"""What ensembles cost: BOOM's own numbers, and what a run measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from emberge import Plugins
from emberge.contracts import TrainingCost

from tests.plugins.boom.recipes import details, run, write_data
from tests.support.result_folders import artifact_of


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
    assert details(made["boom"]).training_cost == TrainingCost(3.0, 420, 140)
    trainings = artifact_of(made["boom"]).trainings
    assert list(trainings) == [f"members.ratio={r}" for r in (0.2, 0.4, 0.6, 0.8, 1.0)]
    for training in trainings.values():
        assert training.examples == 2 * 4, "two steps of four rows"
        assert training.seconds > 0
        assert training.cpu_seconds > 0
    assert artifact_of(made["boom"]).size == 420


def test_bags_weigh_by_their_sizes(made: Mapping[str, Path]) -> None:
    weights = details(made["boom"]).weights  # methods' N weights of the five bags
    expected = [0.066667, 0.133333, 0.2, 0.266667, 0.333333]
    assert list(weights.values()) == pytest.approx(expected, abs=1e-6)
