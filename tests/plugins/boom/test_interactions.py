"""The interaction study: its worked numbers, and a whole study of a tiny model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge import DataError, hookimpl, load_plugins, parse_recipe, run_recipe
from emberge.recipes import Recipe
from emberge_boom.study.study import FILE, Interaction, read_study, write_study

from tests.plugins.boom.studied import NAMES, RECIPE, study_data, worked
from tests.support.result_folders import folders


def test_worked_distances_as_the_paper_prints_them() -> None:
    study = worked()
    found = [one.distance for one in study.interactions]
    assert found == pytest.approx([0.04, 0.12, 0.05, 0.10, 0.05, 1.05])
    assert [one.apart for one in study.interactions] == pytest.approx(
        [1.1, 1.5, 0.9, 1.6, 1.0, 1.4]
    )
    assert study.interactions[0].delta == pytest.approx(-0.044)


@pytest.mark.parametrize(
    ("threshold", "clusters"),
    [
        (0.03, {("a",), ("b",), ("c",), ("d",)}),
        (0.045, {("a", "b"), ("c",), ("d",)}),
        (0.15, {("a", "b", "d"), ("c",)}),
        (0.2, {("a", "b", "d"), ("c",)}),
        (1.0, {NAMES}),
    ],
)
def test_worked_clusters_by_average_linkage(threshold: float, clusters: set[Any]) -> None:
    study = worked()
    assert study.heights == pytest.approx([0.04, 0.05, 0.423333], abs=1e-6)
    assert set(study.clusters(threshold=threshold)) == clusters


def test_the_printed_distance_jumps_where_helping_turns_into_harm() -> None:
    helped, equal, harmed = (
        Interaction(("a", "b"), joint, 1.0).distance for joint in (0.999, 1.0, 1.001)
    )
    assert helped == pytest.approx(0.001)
    assert (equal, harmed) == (1.0, pytest.approx(1.001))


def test_the_most_conflicting_pairs_come_first() -> None:
    conflicts = worked().conflicts
    assert conflicts[0].pair == ("c", "d")
    assert conflicts[-1].pair == ("a", "c")
    deltas = [one.delta for one in conflicts]
    assert deltas == sorted(deltas, reverse=True)


def test_losses_that_are_not_above_zero_have_no_distance() -> None:
    with pytest.raises(DataError, match=r"of a and b apart is 0; .* need losses above 0"):
        dataclasses.replace(worked(), singles=dict.fromkeys(NAMES, 0.0))


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = worked()
    write_study(tmp_path, study)
    again = read_study(tmp_path)
    assert again == study
    assert again.conflicts == study.conflicts
    told = json.loads((tmp_path / FILE).read_text())
    assert told["tree"] == again.tree.tolist()
    assert told["pairs"][0]["pair"] == ["c", "d"]


def test_every_number_of_clusters_is_told_with_its_threshold() -> None:
    cuts = worked().cuts()
    assert [len(clusters) for _, clusters in cuts] == [1, 2, 3, 4]
    assert [level for level, _ in cuts] == pytest.approx([0.423333, 0.05, 0.04, 0], abs=1e-6)


# ── a whole study ───────────────────────────────────────────────────────────────────────────────


def recipe(text: str, folder: Path) -> Recipe:
    return parse_recipe(text, load_plugins(), path=folder / "recipe.yaml")


def run(text: str, folder: Path, out: str) -> Mapping[str, Path]:
    return folders(run_recipe(recipe(text, folder), folder / out, load_plugins(), quiet=True))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    return study_data(tmp_path_factory.mktemp("study"), bert)


@pytest.fixture(scope="module")
def finished(data: Path) -> Mapping[str, Path]:
    return {name: folder.resolve() for name, folder in run(RECIPE, data, "out").items()}


def details(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "artifact.json").read_text())["details"]
    return found


def test_each_dataset_and_each_pair_is_a_step_of_its_own(data: Path) -> None:
    found = recipe(RECIPE, data)
    ids = [step.id for step in found.steps]
    assert ids[:4] == [f"study.alone={name}" for name in ("find", "like", "name", "seek")]
    assert len(ids) == 4 + 6 + 1
    assert ids[4] == "study.pair=find,like"
    assert ids[-1] == "study"
    assert found.steps[-1].needs == tuple(ids[:-1])
    assert all(step.needs == () for step in found.steps[:-1])


def test_a_study_keeps_losses_and_no_model(finished: Mapping[str, Path]) -> None:
    files = {p.name for folder in finished.values() for p in folder.rglob("*") if p.is_file()}
    assert not [name for name in files if name.endswith(".safetensors")]
    assert details(finished["study.pair=find,seek"])["steps"] == 8  # of 4 rows each


def test_samples_are_as_large_as_the_smallest_dataset(finished: Mapping[str, Path]) -> None:
    study = read_study(finished["study"])
    assert study.rows == 16
    assert study.sizes == {"find": 40, "like": 24, "name": 16, "seek": 32}
    alone = details(finished["study.alone=find"])
    assert alone["datasets"]["find"] == {"task": "retrieval", "rows": 16, "of": 40}
    assert alone["steps"] == 4


def test_the_study_tells_its_clusters_at_the_end(finished: Mapping[str, Path]) -> None:
    study = read_study(finished["study"])
    table = (finished["study"] / details(finished["study"])["table"]).read_text()
    numbered = "; ".join(f"{i}: {', '.join(c)}" for i, c in enumerate(study.clusters(count=2), 1))
    assert f"| 2 | {numbered} |" in table


def test_the_study_is_made_of_the_mean_losses_of_its_trainings(
    finished: Mapping[str, Path],
) -> None:
    study = read_study(finished["study"])
    like, name, both = (
        details(finished[f"study.{step}"])["mean_loss"]
        for step in ("alone=like", "alone=name", "pair=like,name")
    )
    assert study.singles["like"] == like
    (one,) = (one for one in study.interactions if one.pair == ("like", "name"))
    assert (one.joint, one.apart) == (both, (like + name) / 2)


def test_a_training_s_loss_is_the_mean_of_its_steps(
    finished: Mapping[str, Path], data: Path
) -> None:
    """The same rows, batches and loss as a step `train` that logs every step."""
    text = """
seed: 3
steps:
  plain:
    train:
      model: ./model
      data: {path: data/datasets.yaml, only: [name]}
      loss: infonce
      sampler: {batch_shuffle: {batch_size: 4}}
      learning_rate: 1e-3
      logging_steps: 1
"""
    losses = [loss for _, loss in details(run(text, data, "plain")["plain"])["loss_curve"]]
    assert len(losses) == 4
    found = details(finished["study.alone=name"])["mean_loss"]
    assert found == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_the_order_of_datasets_plays_no_part(finished: Mapping[str, Path], data: Path) -> None:
    turned = RECIPE.replace("[find, seek, like, name]", "[name, like, find, seek]")
    assert turned != RECIPE
    again = run(turned, data, "turned")
    assert list(again) == list(finished)
    assert (again["study"] / FILE).read_bytes() == (finished["study"] / FILE).read_bytes()


def test_a_study_that_was_stopped_ends_as_one_that_was_not(
    finished: Mapping[str, Path], data: Path
) -> None:
    class Stop:
        @hookimpl
        def step_started(self, step: str) -> None:
            if step == "study.pair=find,name":
                raise KeyboardInterrupt

    plugins = load_plugins()
    plugins.manager.register(Stop())
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe(RECIPE, data), data / "torn", plugins, quiet=True)
    done = [name for name in finished if (data / "torn" / name / "artifact.json").is_file()]
    assert done == list(finished)[:5]
    again = run(RECIPE, data, "torn")["study"]
    assert (again / FILE).read_bytes() == (finished["study"] / FILE).read_bytes()


def test_with_given_rows_a_further_dataset_costs_only_its_own_trainings(data: Path) -> None:
    some = (RECIPE + "      rows: 12\n").replace(", name]", "]")
    first = run(some, data, "grown")
    made = {name: (folder / "artifact.json").stat().st_mtime_ns for name, folder in first.items()}
    more = run(some.replace("like]", "like, name]"), data, "grown")
    kept = [n for n in first if (more[n] / "artifact.json").stat().st_mtime_ns == made[n]]
    assert sorted(kept) == sorted(name for name in first if name != "study")
    assert read_study(more["study"]).rows == 12


def test_options_by_dataset_hold_for_the_trainings_that_have_it(data: Path) -> None:
    text = RECIPE.replace("[find, seek, like, name]", "[find, like]")
    text = text.replace("by_task: {sts: cosent}", "by_dataset: {like: cosent}")
    text = text.replace("batch_size: 4", "batch_size: {default: 4, by_dataset: {find: 8}}")
    done = run(text, data, "narrow")
    steps = {name: details(folder)["steps"] for name, folder in done.items() if name != "study"}
    # 24 rows of each
    assert steps == {"study.alone=find": 3, "study.alone=like": 6, "study.pair=find,like": 9}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("learning_rate: 1e-3", "rows: 20", "'name' has 16; write rows: 16"),
        ("learning_rate: 1e-3", "keep_last: 2", "keep_last: a study keeps no model"),
        ("[find, seek, like, name]", "[find]", "between two datasets, and there is 1"),
        ("batch_size: 4", "batch_size: 64", "no dataset fills a batch"),
        ("[find, seek, like, name]", "[find, lik]", "there is no training set 'lik'"),
        (
            "default: infonce",
            "default: {matryoshka: {loss: infonce, dims: [4096]}}",
            "loss Matryoshka: dims",
        ),
        ("cosent}", "{mid_nce: {least_score: 1.5}}}", "least_score"),
    ],
)
def test_what_is_wrong_with_a_study_is_said_before_it_starts(
    data: Path, old: str, new: str, said: str
) -> None:
    from emberge import RecipeError, check_recipe

    assert old in RECIPE
    with pytest.raises(RecipeError, match=said):
        check_recipe(recipe(RECIPE.replace(old, new), data), load_plugins()).raise_errors()


def test_check_says_how_many_trainings_a_study_takes(data: Path) -> None:
    from emberge import check_recipe

    notes = {n.title: n.lines for n in check_recipe(recipe(RECIPE, data), load_plugins()).notes}
    assert notes["study"] == ("4 datasets: 4 trainings alone and 6 of pairs",)
    assert notes["samples"] == ("16 rows of each dataset",)
