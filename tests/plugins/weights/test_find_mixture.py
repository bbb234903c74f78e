"""The `find_mixture` step: what datasets are worth, harm taken out, and shares for a training."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from emberge import (
    DataError,
    EmbergeError,
    Machine,
    Plugins,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.results import read_artifact
from emberge.training import FoundMixture
from emberge_report import figure_data
from emberge_weights import extrapolate, find_worth, leave_one_out
from emberge_weights.mixture.judge import MixtureJudge

from tests.plugins.weights.places import write_sets
from tests.support.bench import sentence
from tests.support.peft_adapters import save_adapter
from tests.support.result_folders import folders

RECIPE = """
steps:
  mixture:
    find_mixture:
      model: ./base
      data: [./first.jsonl, ./second.jsonl, ./shuffled.jsonl]
      development: {path: ./sets, only: [asked]}
      loss: infonce
      learning_rate: 1e-3
      shares: {first: 0.25, second: 0.2501, shuffled: 0.5}
      max_steps: 16
      sampler: {batch_shuffle: {batch_size: 16}}
  trained:
    train:
      model: ./base
      data: [./first.jsonl, ./second.jsonl, ./shuffled.jsonl]
      loss: infonce
      max_steps: 4
      sampler: {proportional: {shares: $mixture, batch_size: 16}}
"""


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


def write_pairs(path: Path, *, seed: int, shuffled: bool = False, rows: int = 200) -> None:
    """Write pairs of a text's first words and the text, or of another text's."""
    rng = random.Random(seed)
    texts = [sentence(rng, 8) for _ in range(rows)]
    answers = texts[::-1] if shuffled else texts
    lines = [
        json.dumps({"query": " ".join(text.split()[:3]) + " " + sentence(rng, 3), "pos": [answer]})
        for text, answer in zip(texts, answers, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, two datasets of one kind, one with other texts' answers, and sets."""
    folder = tmp_path_factory.mktemp("mixture")
    (folder / "base").symlink_to(bert)
    write_sets(folder / "sets", ("asked",), units=400)
    write_pairs(folder / "first.jsonl", seed=1)
    write_pairs(folder / "second.jsonl", seed=2)
    write_pairs(folder / "shuffled.jsonl", seed=3, shuffled=True)
    return folder


@pytest.fixture(scope="module")
def results(place: Path, plugins: Plugins) -> dict[str, Path]:
    recipe = parse_recipe(RECIPE, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    return folders(run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True))


@pytest.mark.slow
def test_a_set_with_other_texts_answers_harms_and_has_no_share(results: dict[str, Path]) -> None:
    found = FoundMixture.read(results["mixture"])
    verdicts = {name: worth["verdict"] for name, worth in found.facts["worth"].items()}
    assert verdicts == {"first": "helps", "second": "helps", "shuffled": "harms"}
    assert found.shares == pytest.approx({"first": 0.5, "second": 0.5, "shuffled": 0.0}, abs=1e-3)
    assert found.facts["confirmed"]["low"] > 0
    assert found.facts["steps"] == 3 * 3 * 16
    given, kept = (found.facts[name] for name in ("merges", "merges_without_harm"))
    assert [one["scale"] for one in given] == [1.0, 1.5, 2.0]
    assert all(after["real"] > before["real"] for before, after in zip(given, kept, strict=True))
    table = (results["mixture"] / "mixture.md").read_text()
    assert "shuffled harms and has no share: merged for real, the mixture without gains +" in table


def test_trainings_of_a_set_differ_by_their_seeds(results: dict[str, Path]) -> None:
    for name in ("first", "second", "shuffled"):
        weights = {
            (results[f"mixture.set={name},seed={draw}"] / "model.safetensors").read_bytes()
            for draw in (1, 2, 3)
        }
        assert len(weights) == 3


@pytest.mark.slow
def test_trainings_that_do_not_differ_are_refused(place: Path, plugins: Plugins) -> None:
    text = RECIPE[: RECIPE.index("  trained:")].replace("1e-3", "0")
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    with pytest.raises(
        EmbergeError, match="trainings of 'first' with different seeds are the same"
    ):
        run_recipe(recipe, place / "equal", plugins, machine=Machine(), quiet=True)


def test_a_merge_at_scale_one_without_harm_is_foretold(results: dict[str, Path]) -> None:
    facts = FoundMixture.read(results["mixture"]).facts
    first = facts["merges_without_harm"][0]
    assert first["real"] == pytest.approx(first["foretold"], abs=0.05)
    assert first["real"] > facts["base"] + 0.1


def test_worth_by_set_is_worth_where_there_is_one_set(results: dict[str, Path]) -> None:
    for worth in FoundMixture.read(results["mixture"]).facts["worth"].values():
        assert worth["by_set"] == pytest.approx([worth["difference"]])


def test_figures_are_those_that_a_report_draws(results: dict[str, Path]) -> None:
    details = read_artifact(results["mixture"]).details
    figures = figure_data("mixture", details["figures"])
    assert [one.title for one in figures] == [
        "What each dataset is worth",
        "Shares of the mixture",
        "Merges of short trainings by scale",
    ]
    assert details["harmful"] == ["shuffled"]


def test_a_training_takes_the_shares(results: dict[str, Path]) -> None:
    datasets = read_artifact(results["trained"]).details["datasets"]
    assert {name: one["rows"] > 0 for name, one in datasets.items()} == {
        "first": True,
        "second": True,
        "shuffled": False,
    }


# ── before the run ──────────────────────────────────────────────────────────────────────────────


def faults(place: Path, plugins: Plugins, text: str) -> str:
    try:
        recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
        report = check_recipe(recipe, plugins)
    except EmbergeError as error:
        return str(error)
    return "\n".join(str(problem) for problem in report.problems)


GIVEN = "{first: 0.25, second: 0.2501, shuffled: 0.5}"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (GIVEN, "{first: 0.25, second: 0.25, shuffled: 0.4}", "shares sum to 0.9, not to 1"),
        (
            GIVEN,
            "{first: 1.25, second: -0.25}",
            "a number above 0 and at most 1, not the number 1.25",
        ),
        (GIVEN, "{first: 0.5, secnd: 0.5}", "there is no 'secnd'; did you mean 'second'"),
        (GIVEN, "{first: 0.5, second: 0.5}", "shuffled has none; give it one"),
        (f"shares: {GIVEN}", "clusters: {ab: [first, scond]}", "there is no dataset 'scond'"),
        (f"shares: {GIVEN}", "clusters: {ab: [first], c: [first]}", "'first' is in two clusters"),
        (f"shares: {GIVEN}", "clusters: {ab: []}", "'ab' names no dataset"),
        (f"shares: {GIVEN}", "clusters: {first: [second]}", "'first' is the name of a dataset"),
        (f"shares: {GIVEN}", "clusters: {a/b: [first]}", "'a/b' has other characters than letters"),
        ("only: [asked]", "only: [asked], limit_queries: 20", "set 'asked-dev' has 20 queries"),
        (f"shares: {GIVEN}", "seeds: 1", "a whole number of at least 2, not the number 1"),
        (f"shares: {GIVEN}", "scales: []", "scales names no length"),
        ("{path: ./sets, only: [asked]}", "[]", "development names no evaluation set"),
        ("{shares: $mixture, batch", "{shares: $mixture, size_limit: 9, batch", "give one of them"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    place: Path, plugins: Plugins, old: str, new: str, fault: str
) -> None:
    assert old in RECIPE
    assert fault in faults(place, plugins, RECIPE.replace(old, new))


MIXTURE = RECIPE[: RECIPE.index("  trained:")]


def test_options_of_other_datasets_are_left_out_of_a_short_training(
    place: Path, plugins: Plugins
) -> None:
    """A training on `first` knows no `second`, which options by dataset may name."""
    loss = "{default: infonce, by_dataset: {second: {infonce: {temperature: 0.1}}}}"
    size = "{default: 16, by_dataset: {second: 8}}"
    length = "max_length: {default: 24, by_dataset: {second: 16}}"
    text = MIXTURE.replace("loss: infonce", f"loss: {loss}\n      {length}").replace(
        "sampler: {batch_shuffle: {batch_size: 16}}",
        f"sampler: {{batch_shuffle: {{batch_size: {size}}}}}",
    )
    assert faults(place, plugins, text) == ""
    for old, new in (
        ("second: 8", "secnd: 8"),
        ("second: 16", "secnd: 16"),
        ("{second: {infonce", "{secnd: {infonce"),
    ):
        found = faults(place, plugins, text.replace(old, new))
        assert "by_dataset names 'secnd', which is no dataset" in found
        assert "did you mean 'second'" in found


def test_a_problem_of_the_trainings_is_told_once(place: Path, plugins: Plugins) -> None:
    found = faults(place, plugins, MIXTURE.replace("loss: infonce", "loss: cosent"))
    told = [line for line in found.splitlines() if "'first'" in line]
    assert len(told) == 1
    assert "cosent" in told[0].lower()


@pytest.mark.slow
def test_many_datasets_are_advised_to_be_clustered(place: Path, plugins: Plugins) -> None:
    for number in range(21):
        write_pairs(place / f"set_{number}.jsonl", seed=number, rows=20)
    names = ", ".join(f"./set_{number}.jsonl" for number in range(21))
    text = MIXTURE.replace(f"      shares: {GIVEN}\n", "").replace(
        "./first.jsonl, ./second.jsonl, ./shuffled.jsonl", names
    )
    assert "21 sets are trained alone, 3 times each" in faults(place, plugins, text)
    fewer = text.replace(", ./set_20.jsonl", "")
    assert "together with `clusters`" not in faults(place, plugins, fewer)


def test_a_choice_on_a_test_half_is_warned_of(place: Path, plugins: Plugins) -> None:
    text = MIXTURE.replace("only: [asked]", "only: [asked], split: test")
    assert "a mixture is chosen on a test half" in faults(place, plugins, text)
    assert "test half" not in faults(place, plugins, MIXTURE)


def test_a_mixture_is_for_a_whole_model(place: Path, plugins: Plugins) -> None:
    save_adapter(place / "adapter", place / "base")
    text = MIXTURE.replace("./base", "./base+./adapter")
    assert "a mixture is for a whole model, not an adapter" in faults(place, plugins, text)


def test_the_judge_has_the_shares_and_lengths_of_the_recipe(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges: list[MixtureJudge] = []

    def stop(judge: MixtureJudge) -> None:
        judges.append(judge)
        raise DataError("far enough")

    monkeypatch.setattr(MixtureJudge, "run", stop)
    text = MIXTURE.replace("max_steps: 16", "max_steps: 1\n      max_length: 24")
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    with pytest.raises(EmbergeError, match="far enough"):
        run_recipe(recipe, place / "judged", plugins, machine=Machine(), quiet=True)
    (judge,) = judges
    assert judge.max_length == 24
    assert judge.shares == pytest.approx({"first": 0.25, "second": 0.25, "shuffled": 0.5}, abs=1e-3)
    assert sum(judge.shares.values()) == pytest.approx(1)
    assert [len(models) for models in judge.specialists.values()] == [3, 3, 3]
    few = text.replace("only: [asked]", "only: [asked], limit_queries: 20")
    recipe = parse_recipe(few, plugins, path=place / "recipe.yaml")
    with pytest.raises(EmbergeError, match="has 20 queries"):
        run_recipe(recipe, place / "judged", plugins, machine=Machine(), quiet=True)


def test_one_dataset_is_no_mixture(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace(f"      shares: {GIVEN}\n", "").replace(
        ", ./second.jsonl, ./shuffled.jsonl]\n      development", "]\n      development"
    )
    assert "and there is 1" in faults(place, plugins, text)


def test_two_datasets_of_one_name_are_refused(place: Path, plugins: Plugins) -> None:
    (place / "other").mkdir()
    write_pairs(place / "other" / "second.jsonl", seed=9)
    text = RECIPE.replace(f"      shares: {GIVEN}\n", "").replace(
        "./second.jsonl, ./shuffled.jsonl]\n      dev",
        "./second.jsonl, ./other/second.jsonl]\n      dev",
    )
    assert "two datasets are named 'second'" in faults(place, plugins, text)


def test_a_broken_row_is_told_once(place: Path, plugins: Plugins) -> None:
    (place / "broken.jsonl").write_text("{\n")
    text = RECIPE.replace(f"      shares: {GIVEN}\n", "").replace(
        "./second.jsonl, ./shuffled.jsonl]\n      dev", "./broken.jsonl]\n      dev"
    )
    assert faults(place, plugins, text).count("broken.jsonl:1") == 1


def test_a_set_without_development_data_is_named(place: Path, plugins: Plugins) -> None:
    asked = place / "sets" / "asked" / "qrels_dev.tsv"
    content = asked.read_text()
    asked.unlink()
    try:
        found = faults(place, plugins, RECIPE)
    finally:
        asked.write_text(content)
    assert "asked" in found
    assert "hold rows out of its training data by the step split" in found


def test_datasets_of_a_cluster_are_trained_together(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace(f"shares: {GIVEN}", "clusters: {good: [first, second]}")
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    parts = {step.id for step in recipe.steps if step.id.startswith("mixture.")}
    assert parts == {
        f"mixture.set={name},seed={draw}" for name in ("good", "shuffled") for draw in (1, 2, 3)
    }


# ── what a part is worth ────────────────────────────────────────────────────────────────────────


def test_weightings_leave_one_out_and_reach_beyond_the_mean() -> None:
    weightings = leave_one_out([1, 1, 2])
    assert weightings.tolist() == [
        [0.25, 0.25, 0.5],
        [0, pytest.approx(1 / 3), pytest.approx(2 / 3)],
        [pytest.approx(1 / 3), 0, pytest.approx(2 / 3)],
        [0.5, 0.5, 0],
    ]
    assert extrapolate(weightings[:1], 2).tolist() == [[0.5, 0.5, 1.0, -1.0]]
    with pytest.raises(ValueError, match="one part"):
        leave_one_out([0, 1])


def test_an_interval_has_the_error_of_units_and_of_trainings() -> None:
    """Two trainings, two parts and one set of four units, by hand."""
    differences = np.array(
        [
            [[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]],
            [[0.3, 0.4, 0.5, 0.6], [0.2, 0.0, 0.0, 0.2]],
        ]
    )
    first, second = find_worth([differences])
    assert (first.difference, second.difference) == pytest.approx((0.35, 0.05))
    # Means by training are 0.25 and 0.45, 0 and 0.1: variances 0.02 and 0.005, pooled 0.0125, halved.
    of_units = np.array([0.0125 / 3, 0.0025 / 3])
    quantile = 6.205347  # Student's t with 2 degrees of freedom, 1 - 0.05 / 4
    half = quantile * np.sqrt(of_units + 0.0125 / 2)
    assert first.high - first.difference == pytest.approx(half[0], rel=1e-6)
    assert second.difference - second.low == pytest.approx(half[1], rel=1e-6)


def test_sets_that_do_no_harm_are_not_accused() -> None:
    """Of 200 mixtures of eight parts without any effect, few have a part with a verdict."""
    draw = np.random.default_rng(0)
    accused = 0
    for _ in range(200):
        of_training = draw.normal(0, 0.02, (3, 8, 1))
        found = find_worth([of_training + draw.normal(0, 0.1, (1, 8, 100)) for _ in range(2)])
        accused += any(one.verdict != "cannot be told" for one in found)
    assert accused <= 20
