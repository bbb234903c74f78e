"""Checks of a search before any work: each problem with its line, how bad it is, and its fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import Plugins, check_recipe, parse_recipe
from emberge.recipes import CheckReport

from tests.support import tiny
from tests.support.json_files import edit

RECIPE = """
steps:
  found:
    find_weights:
      models: [./a, ./b, ./c]
      base: ./base
      candidates: 60
      data: {path: ./sets, only: [likeness]}
"""
MODELS, DATA = 5, 8


def checked(place: Path, plugins: Plugins, old: str = "", new: str = "") -> CheckReport:
    text = RECIPE.replace(old, new)
    return check_recipe(parse_recipe(text, plugins, path=place / "recipe.yaml"), plugins)


def told(report: CheckReport) -> list[tuple[str, int]]:
    """How bad each problem is, and its line."""
    return [(one.severity, int(one.where.rpartition(":")[2])) for one in report.problems]


def test_a_sound_search_has_no_problems(place: Path, plugins: Plugins) -> None:
    assert told(checked(place, plugins)) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "fix"),
    [
        ("./c]", "./a]", MODELS, "'./a' is named 2 times; once is enough"),
        ("[likeness]", "[topics], split: test", DATA, "'topics' is of kind clustering"),
        (
            "./c]",
            "./wide]",
            MODELS,
            "embeddings.LayerNorm.bias and 29 more: './wide' has shape [64]",
        ),
        ("./c]", "./pooled]", MODELS, "(1_Pooling/config.json)"),
    ],
)
def test_a_problem_is_named_at_its_line(
    place: Path, plugins: Plugins, old: str, new: str, line: int, fix: str
) -> None:
    if "wide" in new:
        tiny.checkpoint(place / "wide", hidden_size=64)
    if "pooled" in new:
        tiny.write_modules(tiny.checkpoint(place / "pooled"), 32, pooling="cls")
    report = checked(place, plugins, old, new)
    found = [str(one) for one in report.errors if fix in str(one)]
    assert len(found) == 1
    assert found[0].startswith(f"{place}/recipe.yaml:{line}: ")
    assert {severity for severity, _ in told(report)} <= {"error", "warning"}


def test_one_model_and_its_base_are_enough_and_one_alone_is_not(
    place: Path, plugins: Plugins
) -> None:
    assert told(checked(place, plugins, "[./a, ./b, ./c]", "[./a]")) == []
    both = "[./a, ./b, ./c]\n      base: ./base"
    (problem,) = checked(place, plugins, both, "[./a]").errors
    assert "two models, or one and its base" in str(problem)


def test_weights_that_are_chosen_on_a_test_half_are_warned_of(
    place: Path, plugins: Plugins
) -> None:
    report = checked(place, plugins, "[likeness]}", "[likeness], split: test}")
    assert told(report) == [("warning", DATA)]
    assert "chosen on a test part" in str(report.problems[0])


def test_a_model_that_compares_by_other_than_cosine_is_warned_of(
    place: Path, plugins: Plugins
) -> None:
    for kind, count in (("dot", 1), ("cosine", 0)):
        folder = tiny.checkpoint(place / kind, seed=9, like=place / "base")
        edit(folder, "config_sentence_transformers.json", similarity_fn_name=kind)
        report = checked(place, plugins, "./c]", f"./{kind}]")
        assert told(report).count(("warning", MODELS)) == count
        by_cosine = "./dot compares by dot, and here all are compared by cosine"
        assert sum(by_cosine in str(one) for one in report.problems) == count


def test_weights_that_a_step_will_find_are_shown_as_the_steps(
    place: Path, plugins: Plugins
) -> None:
    text = RECIPE + (
        "  merged:\n    merge: {models: [./a, {model: ./b, weight: -3}, ./c], weights: $found, MORE}\n"
    )
    for more, shown in (
        ("base: ./base, strategy: ties", "by step found"),
        ("base: ./base, keep: 0.25", "by step found, of the 0.75 that the base leaves"),
    ):
        recipe = parse_recipe(text.replace("MORE", more), plugins, path=place / "recipe.yaml")
        report = check_recipe(recipe, plugins)
        (plan,) = (note for note in report.notes if note.title == "merge plan")
        assert [line for line in plan.lines if line.startswith("weights")] == [
            f"weights     {shown}"
        ]
        assert not report.problems  # the sum of weights that are not known is not doubted
