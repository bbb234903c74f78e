"""Clusters and conflicts of a study choose what a training sees, in Python and in recipes."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emberge import (
    DataError,
    DatasetInfo,
    EmbergeError,
    FileRef,
    Pool,
    RecipeError,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.recipes import Recipe
from emberge_boom.keep import Keep
from emberge_boom.study import STUDY_FILE, Study, read_study, write_study
from emberge_boom.study_samplers import Cluster, Conflict

from tests.plugins.boom.studied import RECIPE, study_data, worked
from tests.support.json_files import edit
from tests.support.result_folders import folders

OF = FileRef("$study")


def pool(*names: str) -> Pool:
    return {DatasetInfo(name, "sts", 5): range(5) for name in names}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_study(tmp_path, worked())
    return tmp_path


def kept(sampler: Any, place: Path, names: str = "abcd") -> list[str]:
    resolved = sampler.resolved(lambda _: place)
    return [info.name for info in resolved.select(pool(*names), 0)]


@pytest.mark.parametrize(
    ("options", "datasets"),
    [
        ({"threshold": 0.2, "number": 1}, ["a", "b", "d"]),
        ({"threshold": 0.2, "number": 2, "count": 2}, ["c"]),
        ({"threshold": 1.0}, ["a", "b", "c", "d"]),
        ({"clusters": 2, "number": 2}, ["c"]),
        ({"clusters": 4, "number": 3}, ["c"]),
    ],
)
def test_a_cluster_keeps_its_datasets(
    options: dict[str, Any], datasets: list[str], place: Path
) -> None:
    assert kept(Cluster(of=OF, **options), place) == datasets


@pytest.mark.parametrize(
    ("sizes", "clusters"),
    [
        ({}, (("a", "b"), ("c",), ("d",))),
        ({"d": 30}, (("d",), ("a", "b"), ("c",))),
        ({"c": 20}, (("a", "b"), ("c",), ("d",))),
        ({"c": 5}, (("a", "b"), ("d",), ("c",))),
    ],
)
def test_clusters_are_numbered_by_their_data_and_then_by_name(
    sizes: dict[str, int], clusters: tuple[tuple[str, ...], ...]
) -> None:
    study = replace(worked(), sizes={**worked().sizes, **sizes})
    assert study.find_clusters(count=3) == clusters


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"threshold": 0.2, "number": 3},
            r"asks for cluster 3 of any number, and the study has 2 clusters at threshold 0.2: 1: a, b, d "
            r"2: c; write foreach: \{cluster: \[1, 2\]\}, or cut elsewhere",
        ),
        (
            {"threshold": 0.045, "number": 1, "count": 2},
            r"asks for cluster 1 of 2, and the study has 3 clusters at threshold 0.045: .* write foreach: "
            r"\{cluster: \[1, 2, 3\]\} and count: 3",
        ),
        (
            {"threshold": 1.0, "count": 2},
            r"the study has 1 cluster at threshold 1: .*\[1\]\} and count: 1",
        ),
    ],
)
def test_clusters_that_a_recipe_leaves_out_or_makes_up_are_refused(
    options: dict[str, Any], said: str, place: Path
) -> None:
    with pytest.raises(DataError, match=said):
        Cluster(of=OF, **options).resolved(lambda _: place)


def test_unions_at_one_distance_leave_fewer_clusters_than_asked_for() -> None:
    names = ("a", "b", "c")
    alike = dict.fromkeys(names, 1.0)
    together = dict.fromkeys(itertools.combinations(names, 2), 0.9)
    study = Study(names, dict.fromkeys(names, "sts"), dict.fromkeys(names, 1), 1, alike, together)
    assert study.find_clusters(count=2) == (names,)


def test_datasets_that_the_study_or_the_training_does_not_know_are_refused(place: Path) -> None:
    with pytest.raises(DataError, match="'e' of this training was not in the study"):
        kept(Cluster(of=OF, threshold=0.2), place, "abcde")
    with pytest.raises(DataError, match="cluster 2 of 2 has 'c', which is no dataset"):
        kept(Cluster(of=OF, threshold=0.2, number=2), place, "abd")


def test_a_conflict_keeps_both_or_one(place: Path) -> None:
    assert kept(Conflict(of=OF), place) == ["c", "d"]
    assert kept(Conflict(of=OF, member="first"), place) == ["c"]
    assert kept(Conflict(of=OF, member="second"), place) == ["d"]
    assert kept(Conflict(of=OF, rank=2), place) == ["a", "b"]
    with pytest.raises(DataError, match="no pair 7: the study has 6"):
        kept(Conflict(of=OF, rank=7), place)


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name a step `interactions`"):
        kept(Cluster(of=OF, threshold=0.2), tmp_path)
    (tmp_path / "interactions.json").write_text("{}")
    with pytest.raises(DataError, match="is no study of interactions"):
        kept(Cluster(of=OF, threshold=0.2), tmp_path)


def test_nothing_is_chosen_by_a_study_that_was_not_read() -> None:
    with pytest.raises(EmbergeError, match=r"\$study was not read"):
        Cluster(of=OF, threshold=0.2).select(pool("a"), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either threshold or clusters"),
        ({"threshold": 0.2, "clusters": 2}, "either threshold or clusters"),
        ({"clusters": 2, "number": 3}, "beyond the 2 clusters"),
        ({"threshold": 0.2, "count": 2, "number": 3}, "beyond the 2 clusters"),
        ({"clusters": 2, "count": 3}, "count is not 3"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Cluster(of=OF, **options)


def test_keep_takes_datasets_by_task_or_name() -> None:
    infos = [DatasetInfo("a", "sts", 3), DatasetInfo("b", "retrieval", 3)]
    given: Pool = {info: range(3) for info in infos}
    assert list(Keep(tasks=("sts",)).select(given, 0)) == [infos[0]]
    assert list(Keep(datasets=("b",)).select(given, 0)) == [infos[1]]
    with pytest.raises(DataError, match="no dataset is for 'clustering'"):
        Keep(tasks=("clustering",)).select(given, 0)
    with pytest.raises(DataError, match="no dataset is named 'bb'; did you mean 'b'"):
        Keep(datasets=("bb",)).select({**given, DatasetInfo("bc", "sts", 1): range(1)}, 0)
    with pytest.raises(ValueError, match="either tasks or datasets"):
        Keep()


# ── in a recipe ─────────────────────────────────────────────────────────────────────────────────

CLUSTERED = (
    RECIPE
    + """
  members:
    foreach: {cluster: [1, 2]}
    train:
      model: ./model
      data: data/datasets.yaml
      loss: {default: infonce, by_task: {sts: cosent}}
      sampler:
        - cluster: {of: $study, clusters: 2, number: $cluster}
        - batch_shuffle: {batch_size: 4}
      learning_rate: 1e-3
  merged:
    merge: {models: $members, weights: size, strategy: multi_slerp}
  page:
    report: {of: [$study, $members, $merged]}
"""
)


def recipe(text: str, folder: Path) -> Recipe:
    return parse_recipe(text, load_plugins(), path=folder / "recipe.yaml")


def checked(text: str, folder: Path, **options: Any) -> Any:
    """What `check` says of a recipe."""
    return check_recipe(recipe(text, folder), load_plugins(), **options)


def run(text: str, folder: Path, out: str = "out") -> Mapping[str, Path]:
    return folders(run_recipe(recipe(text, folder), folder / out, load_plugins(), quiet=True))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    return study_data(tmp_path_factory.mktemp("clustered"), bert)


@pytest.fixture(scope="module")
def finished(data: Path) -> Mapping[str, Path]:
    return {name: folder.resolve() for name, folder in run(CLUSTERED, data).items()}


STUDY = [
    *(f"study.alone={name}" for name in ("find", "like", "name", "seek")),
    *(
        f"study.pair={one},{two}"
        for one, two in itertools.combinations(("find", "like", "name", "seek"), 2)
    ),
    "study",
]


def details(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "artifact.json").read_text())["details"]
    return found


@pytest.mark.slow
def test_each_member_is_trained_on_its_cluster_and_they_are_merged(
    finished: Mapping[str, Path],
) -> None:
    study: Study = read_study(finished["study"])
    first, second = study.find_clusters(count=2)
    for number, names in enumerate((first, second), 1):
        told = details(finished[f"members.cluster={number}"])["datasets"]
        assert {name for name, one in told.items() if one["rows"]} == set(names)
        assert all(one["rows"] == study.sizes[name] for name, one in told.items() if one["rows"])
    sizes = [sum(study.sizes[name] for name in names) for names in (first, second)]
    weights = details(finished["merged"])["weights"]
    found = list(weights.values()) if isinstance(weights, dict) else weights
    assert [w / sum(found) for w in found] == pytest.approx([s / sum(sizes) for s in sizes])


def test_the_page_shows_the_study(finished: Mapping[str, Path]) -> None:
    page = (finished["page"] / "report.html").read_text()
    assert "Figures of study" in page
    assert "Every way to cut the tree" in page
    assert not re.search(r"url\(|@import|https?:", page)


# ── the study itself ────────────────────────────────────────────────────────────────────────────


def test_each_dataset_and_each_pair_is_a_step_of_its_own(data: Path) -> None:
    found = recipe(RECIPE, data)
    assert [step.id for step in found.steps] == STUDY
    assert found.steps[-1].needs == tuple(STUDY[:-1])
    assert all(step.needs == () for step in found.steps[:-1])


def test_a_study_keeps_losses_and_no_model(finished: Mapping[str, Path]) -> None:
    for name in STUDY:
        assert not list(finished[name].rglob("*.safetensors"))
    assert details(finished["study.pair=find,seek"])["steps"] == 8  # of 4 rows each


def test_samples_are_as_large_as_the_smallest_dataset(finished: Mapping[str, Path]) -> None:
    study = read_study(finished["study"])
    assert study.rows == 16
    assert study.sizes == {"find": 40, "like": 24, "name": 16, "seek": 32}
    alone = details(finished["study.alone=find"])
    assert alone["datasets"]["find"] == {"task": "retrieval", "rows": 16, "of": 40}
    assert alone["steps"] == 4


def test_the_study_is_made_of_the_mean_losses_of_its_trainings(
    finished: Mapping[str, Path],
) -> None:
    study = read_study(finished["study"])
    like, name, both = (
        details(finished[f"study.{step}"])["mean_loss"]
        for step in ("alone=like", "alone=name", "pair=like,name")
    )
    assert study.alone["like"] == like
    (one,) = (one for one in study.dataset_pairs if one.names == ("like", "name"))
    assert (one.joint, one.alone) == (both, (like + name) / 2)


SOME = (RECIPE + "      rows: 12\n").replace("[find, seek, like, name]", "[find, like]")


def test_the_order_of_datasets_plays_no_part(data: Path) -> None:
    turned = SOME.replace("[find, like]", "[like, find]")
    assert turned != SOME
    one, other = run(SOME, data, "grown"), run(turned, data, "turned")
    assert [*one] == [*other]
    assert (one["study"] / STUDY_FILE).read_bytes() == (other["study"] / STUDY_FILE).read_bytes()


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
        ("learning_rate: 1e-3", "keep_last: 2", "keep_last: a study keeps no model"),
        ("learning_rate: 1e-3", "max_length: 5000", "set max_length to at most"),
        ("[find, seek, like, name]", "[find]", "between two datasets, and there is 1"),
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
    assert old in RECIPE
    with pytest.raises(RecipeError, match=said):
        checked(RECIPE.replace(old, new), data).raise_errors()


def test_a_study_of_a_model_with_routers_is_refused_before_it_starts(
    data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data, tmp_path / "data")
    edit(tmp_path / "data" / "model", "config.json", num_experts=4)
    with pytest.raises(RecipeError, match="routers with 4 experts each"):
        checked(RECIPE, tmp_path / "data").raise_errors()


def test_check_says_how_many_trainings_a_study_takes(data: Path) -> None:
    notes = {n.title: n.lines for n in checked(RECIPE, data).notes}
    assert notes["study"] == ("4 datasets: 4 trainings alone and 6 of pairs",)
