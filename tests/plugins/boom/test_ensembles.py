"""Ensembles that grow: another bag, another increment, members that are adapters."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from emberge import Plugins, load_plugins
from safetensors.torch import load_file, save_file

from tests.plugins.boom.recipes import details, run, write_data
from tests.support.tolerance import assert_combined, gamma


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


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
    weights = details(second["boom"])["weights"]
    assert list(weights) == [f"$members.ratio={ratio}" for ratio in (0.5, 1.0, 0.8)]
    assert list(weights.values()) == pytest.approx([42 / 193, 84 / 193, 67 / 193])
    assert details(second["boom"])["training_cost"]["times"] == pytest.approx(193 / 84)


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
    weights = details(made["joint"])["weights"]
    assert list(weights.values()) == pytest.approx([size / sum(sizes) for size in sizes])
    nested = details(made["nested"])["weights"]
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
        assert set(details(made[name])["trained"]) == {"old", "second", "third"}
        assert details(made[name])["training_cost"]["times"] == pytest.approx(172 / 114, abs=1e-6)


LORA = """
  members:
    foreach: {ratio: [0.4, 0.8]}
    train:
      <<: *training
      backbone: {text_encoder: {lora: {rank: 2}}}
      learning_rate: 1e-2
      sampler: [bagging: $ratio, *batches]
  exact:
    merge: {models: $members, weights: size, strategy: multi_slerp}
  mean:
    merge: {models: $members, weights: size, strategy: linear}
  beside:
    merge_adapters: {models: $members, weights: size}
  cut:
    merge_adapters: {models: $members, weights: size, strategy: multi_slerp, rank: 2}
  full:
    merge_adapters: {models: $members, weights: size, strategy: multi_slerp, rank: 4}
  report:
    report: {of: [$members, $exact, $mean, $beside, $cut, $full], base: $exact}
"""


@pytest.fixture(scope="module")
def adapted(
    bert: Path, plugins: Plugins, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("lora")
    shutil.copytree(bert, folder / "bert")
    weights = folder / "bert" / "model.safetensors"
    # As older checkpoints have it: a buffer of integers, which no merge touches.
    positions = {"embeddings.position_ids": torch.arange(5)[None]}
    save_file({**load_file(weights), **positions}, weights, {"format": "pt"})
    write_data(folder, find=60, alike=24)
    return dict(run(folder, LORA, plugins))


def weights_of(folder: Path, base: Path) -> dict[str, torch.Tensor]:
    """A model's tensors; an adapter's on its base."""
    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    found = load_file(base / "model.safetensors")
    factors = load_file(folder / "adapter_model.safetensors")
    for name in [n for n in factors if n.endswith("lora_A.weight")]:
        module = name.removesuffix(".lora_A.weight").removeprefix("base_model.model.")
        product = factors[name.replace("lora_A", "lora_B")] @ factors[name]
        found[f"{module}.weight"] = found[f"{module}.weight"] + product
    return found


def apart(one: Path, other: Path, base: Path) -> float:
    """The distance of two results by that of the second from the base."""
    first, second, origin = (weights_of(f, base) for f in (one, other, base))
    off = sum(float((first[n] - second[n]).double().square().sum()) for n in origin)
    moved = sum(float((origin[n] - second[n]).double().square().sum()) for n in origin)
    return (off / moved) ** 0.5


@pytest.mark.slow
def test_adapter_members_merge_without_whole_models(adapted: dict[str, Path], bert: Path) -> None:
    for name in ("members.ratio=0.4", "members.ratio=0.8", "beside", "cut", "full"):
        assert not (adapted[name] / "model.safetensors").exists()
        assert (adapted[name] / "adapter_model.safetensors").is_file()
    shares = {"$members.ratio=0.4": 34 / 101, "$members.ratio=0.8": 67 / 101}
    for name in ("exact", "mean", "beside", "cut"):
        assert details(adapted[name])["weights"] == pytest.approx(shares), name
        assert details(adapted[name])["training_cost"]["times"] == pytest.approx(101 / 84)
    # Factors side by side are the linear merge; what multi-SLERP adds to it is small beside the change.
    # Numbers of whole models are rounded, which is more than their changes are.
    origin, mean = weights_of(bert, bert), weights_of(adapted["mean"], bert)
    size, moved = (
        sum(float(numbers.double().square().sum()) for numbers in found) ** 0.5
        for found in (origin.values(), [mean[n] - origin[n] for n in origin])
    )
    assert apart(adapted["beside"], adapted["mean"], bert) < gamma(8) * size / moved
    assert apart(adapted["full"], adapted["exact"], bert) < apart(
        adapted["cut"], adapted["exact"], bert
    )
    assert apart(adapted["cut"], adapted["exact"], bert) < 1


def test_what_a_rank_leaves_out_stands_in_artifact_and_report(
    adapted: dict[str, Path], bert: Path
) -> None:
    cut, full, beside = (details(adapted[n])["adapter"] for n in ("cut", "full", "beside"))
    assert set(beside["errors"].values()) == {0.0}
    assert set(cut["ranks"].values()) == {2}
    assert 0 < cut["worst"]["error"] < 1
    assert full["worst"]["error"] < cut["worst"]["error"]
    name, error = cut["worst"]["tensor"], cut["worst"]["error"]
    exact, found, origin = (
        weights_of(folder, bert)[name] for folder in (adapted["exact"], adapted["cut"], bert)
    )
    stored = gamma(8) * float(origin.norm() / (exact - origin).norm())
    left_out = float((exact - found).norm() / (exact - origin).norm())
    assert left_out == pytest.approx(error, rel=0, abs=stored)
    page = (adapted["report"] / "report.html").read_text("utf-8")
    section = page.partition("Distance from exact")[2]
    assert section
    for one in ("beside", "cut", "full"):
        assert one in section
    left_out = page.partition("cut: what its rank leaves out")[2].partition("</table>")[0]
    first = left_out.partition("<tbody>")[2].partition("</tr>")[0]
    assert name in first
    assert f"{error:.3g}" in first
    assert "which leaves nothing out" in page
