"""Tasks with a column for each test set, lengths in epochs, and grids of batch sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emberge import DataRef, Plugins, RecipeError, check_recipe, parse_recipe
from emberge_fine_tuned import TaskEntry, TaskRowSource

from tests.support.tuned_sets import RATE, rows, scored, source, task, tuner, write_sets

pytestmark = pytest.mark.usefixtures("no_dropout")

# Labels of another corpus, as its rows have them and as the task has them.
OTHER_LABELS = {"1": "money", "0": "code"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sets, and one of another corpus: other columns, and true and false as labels."""
    place = tmp_path / "sets"
    place.mkdir()
    write_sets(place)
    lines = [
        {"said": row["text"], "answer": row["other"], "costs": row["label"] == "money"}
        for row in rows(20, 7)
    ]
    (place / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def other(folder: Path, **more: Any) -> TaskRowSource:
    options: dict[str, Any] = {"text": "said", "label": ("costs",), "labels": OTHER_LABELS}
    path = DataRef(str(folder / "other.jsonl"))
    return TaskRowSource(path=path, name="other", **{**options, **more})


def by_test(folder: Path, **more: Any) -> TaskEntry:
    tests = (replace(source(folder, "test"), name="own"), other(folder))
    return replace(task(folder, metric="accuracy", **more), test=tests, columns="test")


def test_each_test_set_has_its_column_and_all_are_of_one_training(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    entry = by_test(folder)
    own, foreign = scored(tuner(entry), bert, tmp_path)
    assert [own.task.name, foreign.task.name] == ["subject/own", "subject/other"]
    assert own.task.fingerprint != foreign.task.fingerprint
    assert len(list(tmp_path.rglob("store/fine_tuned/*/*.json"))) == 1
    (mean,) = scored(tuner(replace(entry, columns="mean")), bert, tmp_path)
    assert len(list(tmp_path.rglob("store/fine_tuned/*/*.json"))) == 1, "the training is the same"
    assert mean.score == pytest.approx((own.score + foreign.score) / 2)
    assert mean.result["test"] == {"own": own.score, "other": foreign.score}
    assert len(own.units.values) == 24
    assert len(foreign.units.values) == 20
    (alone,) = scored(tuner(task(folder, metric="accuracy")), bert, tmp_path / "alone")
    assert own.score == alone.score


def test_a_test_set_of_another_corpus_has_its_own_columns_and_labels(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    """Written with the task's columns and labels, the same rows have the same score."""
    same = "".join(json.dumps(row) + "\n" for row in rows(20, 7))
    (folder / "same.jsonl").write_text(same)
    pairs = by_test(folder, second="other")
    pairs = replace(pairs, dev=(*pairs.dev, other(folder, second="")))
    written = replace(source(folder, "same"), name="written")
    entry = replace(pairs, test=(other(folder, second="answer"), written))
    first, second = scored(tuner(entry), bert, tmp_path / "pairs")
    assert (first.score, first.units) == (second.score, second.units)
    first_text = replace(other(folder, second=""), name="alone")
    without = replace(pairs, test=(first_text, other(folder, second="answer")))
    alone, paired = scored(tuner(without), bert, tmp_path / "alone")
    assert paired.units == first.units
    assert len(alone.units.values) == 20


def test_epochs_are_passes_over_the_training_rows(folder: Path, bert: Path, tmp_path: Path) -> None:
    """40 rows in batches of 16 are three steps an epoch."""
    entry = task(folder, metric="accuracy")
    lengths: dict[str, dict[str, Any]] = {
        "epochs": {"steps": None, "epochs": 3, "eval_steps": 1},
        "steps": {"steps": 9, "eval_steps": 1},
    }
    found = {
        name: scored(tuner(entry, batch_size=(16,), **options), bert, tmp_path / name)[0]
        for name, options in lengths.items()
    }
    assert found["epochs"].result == found["steps"].result
    assert len(found["epochs"].result["curve"]) == 9
    (half,) = scored(
        tuner(entry, batch_size=(16,), steps=None, epochs=1.5, eval_steps=1),
        bert,
        tmp_path / "half",
    )
    assert len(half.result["curve"]) == 5


def test_windows_of_long_passages_count_as_rows_of_an_epoch(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    entry = task(folder, head="span", text="other", second="text", label=("answers",))
    evaluator = tuner(entry, steps=None, epochs=1, max_length=12, eval_steps=1)
    (found,) = scored(evaluator, bert, tmp_path)
    assert len(found.result["curve"]) > 5, "5 steps if no passage was cut"


def test_the_best_batch_size_on_development_data_is_tested(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    entry = task(folder, head="regression", label=("grade",))
    sizes, rates = (8, 16), (1e-9, RATE)
    evaluator = tuner(
        entry, steps=None, epochs=6, batch_size=sizes, learning_rate=rates, eval_steps=5
    )
    (found,) = scored(evaluator, bert, tmp_path / "grid")
    settings = found.result["dev_by_setting"]
    assert [(each["learning_rate"], each["batch_size"]) for each in settings] == [
        (rate, size) for rate in rates for size in sizes
    ]
    best = max(settings, key=lambda each: each["dev"])
    chosen = {name: found.result[name] for name in ("learning_rate", "batch_size", "dev")}
    assert chosen == best
    alone = replace(
        evaluator, batch_size=(best["batch_size"],), learning_rate=(best["learning_rate"],)
    )
    (again,) = scored(alone, bert, tmp_path / "alone")
    assert (again.score, again.units) == (found.score, found.units)


RECIPE = """
seed: 5
steps:
  scores:
    evaluate:
      models: [./one]
      evaluators:
        fine_tuned:
          epochs: 2
          batch_size: [8, 16]
          learning_rate: 1e-3
          seeds: [1, 2]
          data:
          - name: guard
            train: ./sets/train.jsonl
            test:
            - {path: ./sets/test.jsonl, name: own}
            - {path: ./sets/other.jsonl, name: other, text: said, label: costs, labels: LABELS}
            columns: test
            metric: accuracy
"""


def problems(plugins: Plugins, place: Path, text: str) -> Sequence[str]:
    try:
        parsed = parse_recipe(text, plugins, path=place / "recipe.yaml")
    except RecipeError as error:
        return [str(problem) for problem in error.problems]
    return [str(problem) for problem in check_recipe(parsed, plugins).errors]


def test_what_columns_and_lengths_need_is_checked(
    plugins: Plugins, folder: Path, bert: Path, tmp_path: Path
) -> None:
    (tmp_path / "one").symlink_to(bert)
    text = RECIPE.replace("LABELS", json.dumps(OTHER_LABELS))
    (unnamed,) = problems(plugins, tmp_path, text.replace(", name: own", ""))
    assert "`name`" in unnamed
    (twice,) = problems(plugins, tmp_path, text.replace("name: own", "name: other"))
    assert "`name`" in twice
    (both,) = problems(
        plugins, tmp_path, text.replace("epochs: 2", "epochs: 2\n          steps: 9")
    )
    assert "epochs" in both
    (sizes,) = problems(plugins, tmp_path, text.replace("[8, 16]", "[8, 8]"))
    assert "batch_size" in sizes
    (strange, *_) = problems(plugins, tmp_path, RECIPE.replace("LABELS", '{"1": "art"}'))
    assert "other.jsonl" in strange
    assert "art" in strange
