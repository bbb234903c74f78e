"""The interaction study: its worked numbers, its protocols, and a whole study of a tiny model."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge import DataError, hookimpl, load_plugins, parse_recipe, run_recipe
from emberge.recipes import Recipe
from emberge_boom.study.affinity import Pair, Ranking, compare, distance
from emberge_boom.study.gather_study import study_of
from emberge_boom.study.study import FILE, read_study, write_study

from tests.plugins.boom.studied import NAMES, RECIPE, SINGLES, study_data, worked
from tests.support.result_folders import folders


def test_worked_distances_as_the_paper_prints_them() -> None:
    study = worked()
    found = [one.distance for one in study.interactions]
    assert found == pytest.approx([0.04, 0.12, 0.05, 0.10, 0.05, 1.05])
    assert study.between("d", "c").distance == pytest.approx(1.05)
    assert [one.apart for one in study.interactions] == pytest.approx(
        [1.1, 1.5, 0.9, 1.6, 1.0, 1.4]
    )
    assert study.between("a", "b").delta == pytest.approx(-0.044)


def test_worked_distances_as_ratios() -> None:
    found = [one.distance for one in worked(distance="ratio").interactions]
    assert found == pytest.approx([0.96, 0.88, 0.95, 0.90, 0.95, 1.05])


def test_worked_heights_and_clusters_by_average_linkage() -> None:
    study = worked()
    assert study.heights == pytest.approx([0.04, 0.05, 0.423333], abs=1e-6)
    for threshold in (0.15, 0.2):
        assert set(study.clusters(threshold=threshold)) == {("a", "b", "d"), ("c",)}
    assert study.clusters(threshold=1.0) == (NAMES,)


@pytest.mark.parametrize(
    ("linkage", "threshold", "clusters"),
    [
        ("single", 0.15, {NAMES}),
        ("complete", 1.0, {("a", "b", "d"), ("c",)}),
        ("complete", 1.05, {NAMES}),
        ("average", 0.045, {("a", "b"), ("c",), ("d",)}),
        ("average", 0.03, {("a",), ("b",), ("c",), ("d",)}),
    ],
)
def test_worked_clusters_by_linkage(linkage: str, threshold: float, clusters: set[Any]) -> None:
    assert set(worked(linkage=linkage).clusters(threshold=threshold)) == clusters


def test_the_printed_distance_jumps_where_the_ratio_does_not() -> None:
    helped, harmed = distance(0.999, 1.0, "paper"), distance(1.001, 1.0, "paper")
    assert helped < 0.01
    assert harmed > 1
    assert distance(1.0, 1.0, "paper") == 1.0
    assert distance(1.001, 1.0, "ratio") - distance(0.999, 1.0, "ratio") == pytest.approx(0.002)
    assert distance(0.1, 1.0, "paper") > distance(0.9, 1.0, "paper")
    assert distance(0.1, 1.0, "ratio") < distance(0.9, 1.0, "ratio")


def test_the_most_conflicting_pairs_come_first_whatever_the_distance() -> None:
    for how in ("paper", "ratio"):
        conflicts = worked(distance=how).conflicts
        assert conflicts[0].pair == ("c", "d")
        assert conflicts[-1].pair == ("a", "c")
        assert [one.delta for one in conflicts] == sorted(
            (one.delta for one in conflicts), reverse=True
        )


@pytest.mark.parametrize(
    ("ranking", "first"), [("difference", ("loud", "plain")), ("ratio", ("quiet", "still"))]
)
def test_conflicts_are_ranked_by_the_difference_of_losses_or_by_their_ratio(
    ranking: Ranking, first: Pair
) -> None:
    alone = {"loud": 2.0, "plain": 2.0, "quiet": 0.1, "still": 0.1}
    together = {
        pair: (alone[pair[0]] + alone[pair[1]]) / 2 for pair in itertools.combinations(alone, 2)
    }
    together["loud", "plain"] = 2.2  # 0.20 more, 10 %
    together["quiet", "still"] = 0.15  # 0.05 more, 50 %
    study = study_of(
        {name: [(name, loss)] for name, loss in alone.items()},
        {pair: [(pair[0], loss)] for pair, loss in together.items()},
        {name: {"task": "sts", "rows": 1, "of": 1} for name in alone},
        ranking=ranking,
    )
    assert study.conflicts[0].pair == first


def losses(steps: Mapping[str, int], *, seed: int = 0) -> list[tuple[str, float]]:
    """Steps of a training in random order; a dataset's loss falls with its own steps alone."""
    order = [name for name, count in steps.items() for _ in range(count)]
    random.Random(seed).shuffle(order)
    taken = dict.fromkeys(steps, 0)
    found = []
    for name in order:
        taken[name] += 1
        found.append((name, SINGLES[name] / taken[name]))
    return found


@pytest.mark.parametrize("steps", [{"a": 40, "c": 10}, {"a": 3, "c": 90}])
def test_datasets_that_take_unequal_steps_seem_to_interact_unless_matched(
    steps: dict[str, int],
) -> None:
    pair: Pair = ("a", "c")
    apart = {name: losses({name: count}) for name, count in steps.items()}
    joint, alone = compare(pair, losses(steps), apart, "matched")
    assert joint == pytest.approx(alone)
    joint, alone = compare(pair, losses(steps), apart, "paper")
    assert abs(joint / alone - 1) > 0.15


def test_a_joint_training_of_no_more_steps_seems_to_harm_unless_matched() -> None:
    pair: Pair = ("a", "b")
    apart = {name: losses({name: 30}) for name in pair}
    together = losses({"a": 15, "b": 15}, seed=1)
    joint, alone = compare(pair, together, apart, "matched")
    assert joint == pytest.approx(alone)
    joint, alone = compare(pair, together, apart, "paper")
    assert joint > 1.5 * alone


def test_both_protocols_agree_where_each_dataset_takes_as_many_steps() -> None:
    pair: Pair = ("a", "b")
    apart = {name: losses({name: 12}) for name in pair}
    together = [(name, loss * 0.9) for name, loss in losses({"a": 12, "b": 12})]
    assert compare(pair, together, apart, "paper") == pytest.approx(
        compare(pair, together, apart, "matched")
    )


def test_a_dataset_that_took_no_step_cannot_be_matched() -> None:
    apart = {name: losses({name: 3}) for name in "ab"}
    with pytest.raises(DataError, match="'b' took no step of the training with 'a'"):
        compare(("a", "b"), losses({"a": 3}), apart, "matched")


def test_a_loss_of_larger_numbers_speaks_for_a_pair_unless_each_has_its_own_scale() -> None:
    alone = {"a": [("a", 0.5)] * 4, "b": [("b", 50.0)] * 4}
    together = [("a", 0.6)] * 4 + [("b", 50.0)] * 4
    facts = {name: {"task": "sts", "rows": 4, "of": 4} for name in "ab"}
    (one,) = study_of(alone, {("a", "b"): together}, facts).interactions
    assert one.change == pytest.approx(0.1 / 50.5)
    for protocol in ("paper", "matched"):
        study = study_of(alone, {("a", "b"): together}, facts, scale="own", loss_protocol=protocol)
        (one,) = study.interactions
        assert (one.joint, one.apart) == pytest.approx((1.1, 1.0))
        assert study.singles == {"a": 0.5, "b": 50.0}
        assert study.scale == "own"


def test_losses_that_are_not_above_zero_have_no_distance() -> None:
    steps: dict[str, list[tuple[str, float]]] = {n: [(n, 0.0)] for n in "ab"}
    facts = {name: {"task": "sts", "rows": 1, "of": 1} for name in "ab"}
    with pytest.raises(DataError, match="need losses above 0"):
        study_of(steps, {("a", "b"): [("a", 0.0), ("b", 0.0)]}, facts)


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = worked(linkage="complete", distance="ratio", loss_protocol="matched", ranking="ratio")
    write_study(tmp_path, study)
    again = read_study(tmp_path)
    assert again.names == study.names
    assert again.tree == study.tree
    assert again.conflicts == study.conflicts
    assert (again.linkage, again.distance, again.loss_protocol) == ("complete", "ratio", "matched")
    assert again.ranking == "ratio"
    told = json.loads((tmp_path / FILE).read_text())
    assert told["joint"][0] == [None, 1.056, 1.32, 0.855]
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
    pair = finished["study.pair=find,seek"]
    steps = json.loads((pair / "losses.json").read_text())
    assert {name for name, _ in steps} == {"find", "seek"}
    details = json.loads((pair / "artifact.json").read_text())["details"]
    assert details["steps"] == len(steps)
    assert details["mean_loss"] == pytest.approx(sum(loss for _, loss in steps) / len(steps))


def test_samples_are_as_large_as_the_smallest_dataset(finished: Mapping[str, Path]) -> None:
    study = read_study(finished["study"])
    assert study.rows == 16
    assert study.sizes == {"find": 40, "like": 24, "name": 16, "seek": 32}
    details = json.loads((finished["study.alone=find"] / "artifact.json").read_text())["details"]
    assert details["datasets"]["find"] == {"task": "retrieval", "rows": 16, "of": 40}
    assert details["steps"] == 4  # of 4 rows each


def test_the_study_tells_its_conflicts_and_clusters_at_the_end(
    finished: Mapping[str, Path],
) -> None:
    study = read_study(finished["study"])
    details = json.loads((finished["study"] / "artifact.json").read_text())["details"]
    table = (finished["study"] / details["table"]).read_text()
    first, last = study.conflicts[0], study.conflicts[-1]
    assert (
        f"most harm {' + '.join(first.pair)} {first.delta:+.4f} ({100 * first.change:+.1f} %)"
        in table
    )
    assert (
        f"most help {' + '.join(last.pair)} {last.delta:+.4f} ({100 * last.change:+.1f} %)" in table
    )
    numbered = "; ".join(f"{i}: {', '.join(c)}" for i, c in enumerate(study.clusters(count=2), 1))
    assert f"| 2 | {numbered} |" in table


def test_the_study_is_made_of_the_losses_of_its_steps(finished: Mapping[str, Path]) -> None:
    study = read_study(finished["study"])

    def mean(step: str) -> float:
        told = json.loads((finished[step] / "losses.json").read_text())
        return sum(loss for _, loss in told) / len(told)

    assert study.singles["like"] == pytest.approx(mean("study.alone=like"))
    one = study.between("like", "name")
    assert one.joint == pytest.approx(mean("study.pair=like,name"))
    assert one.apart == pytest.approx((study.singles["like"] + study.singles["name"]) / 2)


def test_the_order_of_datasets_plays_no_part(finished: Mapping[str, Path], data: Path) -> None:
    turned = RECIPE.replace("[find, seek, like, name]", "[name, like, find, seek]")
    assert turned != RECIPE
    again = run(turned, data, "turned")
    assert list(again) == list(finished)
    for name, folder in again.items():
        file = FILE if name == "study" else "losses.json"
        assert (folder / file).read_bytes() == (finished[name] / file).read_bytes()


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
    again = run(RECIPE, data, "torn")
    for name, folder in again.items():
        for file in ("interactions.json", "losses.json"):
            assert (folder / file).exists() == (finished[name] / file).exists()
            if (folder / file).exists():
                assert (folder / file).read_bytes() == (finished[name] / file).read_bytes()


def test_two_studies_of_the_same_trainings_share_them(data: Path) -> None:
    text = RECIPE.replace("study:\n", "study:\n    foreach: {linkage: [average, single]}\n")
    text = text.replace("distance: paper", "linkage: $linkage")
    ids = [step.id for step in recipe(text, data).steps]
    assert len(ids) == 10 + 2
    assert ids[10:] == ["study.linkage=average", "study.linkage=single"]


def test_how_losses_are_compared_trains_nothing_again(
    finished: Mapping[str, Path], data: Path
) -> None:
    first = {
        name: (folder / "artifact.json").stat().st_mtime_ns for name, folder in finished.items()
    }
    again = run(RECIPE.replace("distance: paper", "linkage: complete"), data, "out")
    ran = {n for n, f in again.items() if (f / "artifact.json").stat().st_mtime_ns != first[n]}
    assert ran == {"study"}
    assert read_study(again["study"]).linkage == "complete"


def test_with_given_rows_a_further_dataset_costs_only_its_own_trainings(data: Path) -> None:
    some = RECIPE.replace("distance: paper", "rows: 12").replace(", name]", "]")
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
    done = run(text.replace("distance: paper", "loss_protocol: matched"), data, "narrow")
    steps = json.loads((done["study.pair=find,like"] / "losses.json").read_text())
    names = [name for name, _ in steps]
    assert (names.count("find"), names.count("like")) == (3, 6)  # 24 rows of each
    assert read_study(done["study"]).loss_protocol == "matched"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("distance: paper", "rows: 20", "'name' has 16; write rows: 16"),
        ("distance: paper", "keep_last: 2", "keep_last: a study keeps no model"),
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
    assert notes["samples"][:2] == ("16 rows of each dataset", "find: 4 steps alone")
