"""Ensembles that grow: another bag, another increment, members that are adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import Plugins
from safetensors.torch import load_file

from tests.plugins.boom.recipes import details, run, write_data
from tests.support.result_folders import artifact_of
from tests.support.tolerance import assert_combined


@pytest.fixture(scope="module")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and data; a training in its `out` is run once."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "bert").symlink_to(bert)
    write_data(folder, find=60, alike=24, fresh=30)
    return folder


BAGS = """
  members:
    foreach: {{ratio: {ratios}}}
    train: {{<<: *training, learning_rate: 1e-3, sampler: [bagging: $ratio, *batches]}}
  boom:
    merge: {{models: $members, weights: size, strategy: multi_slerp}}
"""


def test_a_bag_more_trains_that_member_alone(place: Path, plugins: Plugins) -> None:
    first = run(place, BAGS.format(ratios="[0.5, 1.0]"), plugins)
    known = {name: folder.resolve() for name, folder in first.items()}
    written = {name: times_of(folder) for name, folder in known.items()}
    second = run(place, BAGS.format(ratios="[0.5, 1.0, 0.8]"), plugins)
    for name in ("members.ratio=0.5", "members.ratio=1.0"):
        assert second[name].resolve() == known[name]
        assert times_of(known[name]) == written[name]
    assert second["boom"].resolve() != known["boom"]
    weights = details(second["boom"]).weights
    assert list(weights) == [f"$members.ratio={ratio}" for ratio in (0.5, 1.0, 0.8)]
    assert list(weights.values()) == pytest.approx([42 / 193, 84 / 193, 67 / 193])
    assert details(second["boom"]).training_cost.times == pytest.approx(193 / 84)


def times_of(folder: Path) -> dict[Path, int]:
    """The time of the last change of each file of a result."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


INCREMENTS = """
  old:
    train: {<<: *training, learning_rate: 1e-3, data: [find.jsonl], sampler: [*batches]}
  second:
    train:
      <<: *training
      data: [find.jsonl, alike.jsonl]
      learning_rate: 1e-3
      sampler: [core_subset: {new: [alike]}, *batches]
  third:
    train:
      <<: *training
      data: [find.jsonl, alike.jsonl, fresh.jsonl]
      learning_rate: 1e-3
      sampler: [core_subset: {new: [fresh]}, *batches]
  updated:
    merge: {models: [$old, $second], weights: size, strategy: STRATEGY}
  nested:
    merge: {models: [$updated, $third], weights: size, strategy: STRATEGY}
  joint:
    merge: {models: [$old, $second, $third], weights: size, strategy: STRATEGY}
"""


@pytest.mark.parametrize("strategy", ["linear", "multi_slerp"])
def test_nested_increments_are_the_joint_merge_where_that_is_linear(
    strategy: str, place: Path, plugins: Plugins
) -> None:
    made = run(place, INCREMENTS.replace("STRATEGY", strategy), plugins)
    sizes = [60, 24 + 24, 24 + 10 + 30]
    weights = details(made["joint"]).weights
    assert list(weights.values()) == pytest.approx([size / sum(sizes) for size in sizes])
    nested = details(made["nested"]).weights
    assert nested == pytest.approx({"$updated": 108 / 172, "$third": 64 / 172})  # S / (S + n)
    one, other = (load_file(made[n] / "model.safetensors") for n in ("nested", "joint"))
    members = [load_file(made[n] / "model.safetensors") for n in ("old", "second", "third")]
    off = max(float((one[n] - other[n]).abs().max()) for n in one)
    assert max(float((members[0][n] - other[n]).abs().max()) for n in one) > 1e-4
    if strategy == "linear":
        shares = [size / sum(sizes) for size in sizes]
        for name in one:
            addends = [member[name] for member in members]
            assert_combined(other[name], addends, shares)
            assert_combined(one[name], addends, shares, roundings=8)  # two merges
    else:
        assert off > 1e-5  # the mean of directions is another one than the mean of means
    # Either way the artifact tells of all three trainings and their sizes, to merge them anew.
    for name in ("nested", "joint"):
        assert set(artifact_of(made[name]).trainings) == {"old", "second", "third"}
        assert details(made[name]).training_cost.times == pytest.approx(172 / 114, abs=1e-6)
