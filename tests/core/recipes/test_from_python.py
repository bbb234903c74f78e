"""Recipes, runs and merges from Python: plain data in, results with model, scores and report out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from emberge import (
    DataEntry,
    DataError,
    DataRef,
    EmbergeError,
    ModelRef,
    RecipeError,
    StepResult,
    check_recipe,
    load_recipe,
    parse_recipe,
    run_recipe,
)
from emberge.recipes import CheckReport
from emberge_evaluate import ScoredTask, Scores, write_scores

from tests.support.result_folders import folders
from tests.support.steps import RAN, toy


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def two_steps(word: str = "A") -> dict[str, Any]:
    return {
        "seed": 3,
        "steps": {"a": {"write": {"word": word}}, "b": {"write": {"word": "B", "of": ["$a"]}}},
    }


def test_the_text_that_a_run_keeps_is_the_same_recipe(tmp_path: Path) -> None:
    # Texts that YAML 1.2, but not 1.1, takes for numbers or truth.
    for word in ("1e3", "0o17", "on", "null", "true", "two\nlines", "héllo: {", "$$a"):
        run_recipe(two_steps(word), tmp_path / "out", toy(), quiet=True)
        kept = load_recipe(tmp_path / "out" / "recipe.yaml", toy())
        given = parse_recipe(two_steps(word), toy())
        assert [s.step for s in kept.steps] == [s.step for s in given.steps]


def test_a_problem_in_data_is_named_by_its_place() -> None:
    data = {"steps": {"a": {"write": {"word": "A", "tickss": 3}}, "b": {"write": {"ticks": "x"}}}}
    with pytest.raises(RecipeError) as caught:
        parse_recipe(data, toy())
    assert [problem.where for problem in caught.value.problems] == [
        "recipe.steps.a.write.tickss",
        "recipe.steps.b.write.ticks",
    ]
    assert "did you mean 'ticks'" in str(caught.value)
    assert check_recipe(data, toy()).problems == caught.value.problems


@pytest.mark.parametrize(("value", "kind"), [({1, 2}, "set"), (b"x", "bytes")])
def test_a_value_that_no_recipe_has_is_named_by_its_place(value: object, kind: str) -> None:
    data = {"steps": {"a": {"write": {"of": ["./x", value]}}}}
    with pytest.raises(RecipeError, match=rf"^recipe\.steps\.a\.write\.of\.1: .* {kind}$"):
        parse_recipe(data, toy())


def test_paths_results_numbers_and_dataclasses_stand_for_their_values(tmp_path: Path) -> None:
    data = {
        "steps": {
            "a": {
                "write": {
                    "of": (Path("models/one"), tmp_path, StepResult("b", Path("out/b"))),
                    "ticks": numpy.int64(5),
                }
            }
        }
    }
    (step,) = parse_recipe(data, toy()).steps
    assert step.step.of == (ModelRef("./models/one"), ModelRef(str(tmp_path)), ModelRef("./out/b"))
    assert step.step.ticks == 5
    scores = {"table": {"x": numpy.float32(0.5)}}
    (step,) = parse_recipe({"steps": {"a": {"scores": scores}}}, toy()).steps
    assert step.step.table == {"x": 0.5}
    entry = DataEntry(path=DataRef("./x"), limit=5)
    with pytest.raises(RecipeError) as caught:
        parse_recipe({"steps": {"a": {"write": entry}}}, toy())
    assert {"recipe.steps.a.write.path", "recipe.steps.a.write.limit"} <= {
        p.where for p in caught.value.problems
    }


def test_a_run_of_data_gives_each_steps_result(tmp_path: Path) -> None:
    results = run_recipe(two_steps(), str(tmp_path / "out"), toy(), quiet=True)
    assert folders(results) == {name: tmp_path / "out" / name for name in "ab"}
    assert results["b"].artifact.details["names"] == ["a"]
    assert Path(results["b"]) == results["b"].path
    assert RAN == ["a", "b"]


def test_data_is_checked_before_any_work_and_warnings_are_given(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.steps\.a\.write\.word: this word is wrong"):
        run_recipe(two_steps("wrong"), tmp_path / "out", toy(), quiet=True)
    assert RAN == []
    with pytest.warns(UserWarning, match=r"recipe\.steps\.a\.write\.word: this word is odd"):
        run_recipe(two_steps("odd"), tmp_path / "out", toy(), quiet=True)
    assert RAN == ["a", "b"]


def test_data_that_its_caller_has_checked_is_not_checked_again(tmp_path: Path) -> None:
    run_recipe(two_steps("wrong"), tmp_path / "out", toy(), checked=CheckReport())
    assert RAN == ["a", "b"]


def test_a_recipe_is_run_by_its_text_file_or_as_it_was_read(tmp_path: Path) -> None:
    run_recipe(parse_recipe(two_steps("wrong"), toy()), tmp_path / "out", toy(), quiet=True)
    assert RAN == ["a", "b"]
    with pytest.raises(RecipeError, match="no launcher 'locall'"):
        run_recipe(two_steps(), tmp_path / "out", toy(), executor="locall")


def test_a_recipe_is_run_and_checked_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("steps:\n  a: {write: {word: A}}\n")
    results = run_recipe(file, tmp_path / "out", toy(), quiet=True)
    assert list(results) == ["a"]
    file.write_text("steps:\n  a: {write: {word: wrong}}\n")
    for call in (lambda: run_recipe(file, tmp_path / "out", toy()), lambda: raise_of(file)):
        with pytest.raises(RecipeError, match=r"recipe\.yaml:2: this word is wrong"):
            call()
    with pytest.raises(RecipeError, match="nor a shipped recipe"):
        run_recipe(tmp_path / "recipee.yaml", tmp_path / "out", toy())


def raise_of(file: Path) -> None:
    check_recipe(file, toy()).raise_errors()


def test_installed_plugins_are_loaded_if_none_are_given(berts: list[Path], tmp_path: Path) -> None:
    data = {"steps": {"both": {"merge": {"models": berts[:2]}}}}
    assert check_recipe(data).errors == ()
    assert parse_recipe(data).steps[0].kind == "merge:merge"
    results = run_recipe(data, tmp_path / "out", quiet=True)
    assert (results["both"].path / "model.safetensors").is_file()


def scored(folder: Path, metric: str = "ndcg_at_10") -> StepResult:
    """A result with scores of two models on two tasks."""
    folder.mkdir()
    tasks = (
        ScoredTask("Faq<b>", "retrieval", metric, domain="in"),
        ScoredTask("Law", "retrieval", metric, domain="in"),
        ScoredTask("Tax", "retrieval", metric, domain="out"),
    )
    scores = Scores(
        fingerprints={"base": "1", "boom": "2"},
        tasks=tasks,
        values={"base": {"Faq<b>": 0.5}, "boom": {"Faq<b>": 0.731, "Law": 0.5}},
        intervals={"boom": {"Faq<b>": (0.7, 0.76), "in": (0.6, 0.63)}},
        means={"base": {"in": 0.5}, "boom": {"in": 0.6155}},
    )
    write_scores(folder, scores)
    (folder / "artifact.json").write_text('{"kind": "scores"}')
    return StepResult(folder.name, folder)


ROW = {
    "model": "boom",
    "task": "Faq<b>",
    "domain": "in",
    "metric": "ndcg_at_10",
    "score": 0.731,
    "low": 0.7,
    "high": 0.76,
}


def test_scores_are_rows(tmp_path: Path) -> None:
    rows = scored(tmp_path / "scores").scores
    assert rows[2] == ROW
    (mean,) = (r for r in rows if (r["model"], r["task"]) == ("boom", "in-domain mean"))
    assert mean["score"] == 0.6155


def test_damaged_scores_are_refused_by_their_file(tmp_path: Path) -> None:
    result = scored(tmp_path / "scores")
    (result.path / "scores.json").write_text("{")
    with pytest.raises(DataError, match=r"scores\.json"):
        result.scores  # noqa: B018


def test_a_result_that_lacks_a_model_or_scores_says_its_kind(tmp_path: Path) -> None:
    scores = scored(tmp_path / "scores")
    for name in ("model", "report"):
        with pytest.raises(EmbergeError, match=rf"step 'scores' has no {name}: .*'scores'"):
            getattr(scores, name)
    with pytest.raises(EmbergeError, match="no model"):
        scores.load()
    (scores.path / "scores.json").unlink()
    with pytest.raises(EmbergeError, match="no scores"):
        scores.scores  # noqa: B018
    (scores.path / "artifact.json").unlink()
    with pytest.raises(EmbergeError, match="no finished result"):
        scores.artifact  # noqa: B018


def test_a_report_is_found(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<h1>5 > 4</h1>")
    assert StepResult("page", tmp_path).report == tmp_path / "report.html"
