"""What ensembles cost: BOOM's own numbers by `check`, and what a run measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from emberge import Plugins, load_plugins

from tests.plugins.boom.recipes import artifact, details, faults, notes, run, write_data


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


BAGS = """
  members:
    foreach: {variables}
    train: {{<<: *training, sampler: [bagging: {bagging}, *batches]}}
  boom:
    merge: {{models: $members, weights: size, strategy: multi_slerp}}
"""
# The bag sets of BOOM's Table 6 (arXiv:2602.05787) and what the paper says that they cost.
TABLE_6: dict[str, tuple[str, str, str]] = {
    "{50}-and-R": ("{part: [first, rest]}", "{ratio: 0.5, part: $part}", "1 ×"),
    "{60,80}": ("{ratio: [0.6, 0.8]}", "$ratio", "1.4 ×"),
    "{20,40,60,80}": ("{ratio: [0.2, 0.4, 0.6, 0.8]}", "$ratio", "2 ×"),
    "{20,40,60,80,100}": ("{ratio: [0.2, 0.4, 0.6, 0.8, 1.0]}", "$ratio", "3 ×"),
}


@pytest.mark.parametrize("name", TABLE_6)
def test_check_says_what_the_papers_bags_cost(name: str, place: Path, plugins: Plugins) -> None:
    variables, bagging, expected = TABLE_6[name]
    shown = notes(place, BAGS.format(variables=variables, bagging=bagging), plugins)
    line, parts = shown["boom: training cost"]
    assert line.startswith(f"{expected} one run on all rows (")
    rows, of = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+(?= )", line)[-2:])
    assert of == 140
    assert rows / of == pytest.approx(float(expected[:-2]))
    shares = [float(part.rpartition(" ")[2]) for part in parts.split(", ")]
    assert sum(shares) == pytest.approx(float(expected[:-2]))


def test_ratios_may_differ_by_dataset_in_a_list(place: Path, plugins: Plugins) -> None:
    bags = BAGS.format(
        variables="{ratio: [0.5, {default: 0.2, by_dataset: {alike: 1.0}}]}",
        bagging="{ratio: $ratio}",
    )
    shown = notes(place, bags, plugins)
    assert shown["members.ratio=1: training"][:2] == ["find: 20 rows of 100", "alike: 40 rows"]
    assert shown["boom: training cost"][0] == "0.929 × one run on all rows (130 of 140 rows)"
    unknown = bags.replace("{alike:", "{alikes:")
    assert "'alikes', which is no dataset of this training; did you mean 'alike'" in faults(
        place, unknown, plugins
    )


UPDATE = """
  old:
    train: {<<: *training, data: [find.jsonl], sampler: [*batches]}
  update:
    train: {<<: *training, sampler: [core_subset: {new: [alike]}, *batches]}
  updated:
    merge: {models: [$old, $update], weights: size, strategy: multi_slerp}
"""


def test_an_update_costs_its_new_rows_and_the_core(place: Path, plugins: Plugins) -> None:
    shown = notes(place, UPDATE, plugins)
    # (|D′| + k|D|) / |D ∪ D′| with 40 new rows, 100 old ones and k = 0.4.
    assert shown["update: training"] == [
        "find: 40 rows of 100",
        "alike: 40 rows",
        "0.571 of all rows (80 of 140)",
        "2 steps",
    ]
    line, parts = shown["updated: training cost"]
    assert line == "1.29 × one run on all rows (180 of 140 rows)"
    assert parts == "old 0.714, update 0.571"
    from_outside = UPDATE.replace("models: [$old, $update]", "models: [./bert, $update]")
    shown = notes(place, from_outside.replace("weights: size, ", ""), plugins)
    assert shown["updated: training cost"] == ["0.571 × one run on all rows (80 of 140 rows)"]


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
def test_what_was_foretold_is_what_was_measured(made: Mapping[str, Path]) -> None:
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
