"""Recipes given as text: what a check finds wrong with one, and the results of one with no fault."""

from __future__ import annotations

from pathlib import Path

from emberge import EmbergeError, Machine, Plugins, check_recipe, parse_recipe, run_recipe

from tests.support.result_folders import folders


def find_faults(place: Path, text: str, plugins: Plugins) -> str:
    """The errors of a `recipe.yaml` in a folder, a line each."""
    try:
        report = check_recipe(parse_recipe(text, plugins, path=place / "recipe.yaml"), plugins)
    except EmbergeError as error:
        return str(error)
    return "\n".join(str(problem) for problem in report.errors)


def run_checked(place: Path, text: str, plugins: Plugins, out: str = "out") -> dict[str, Path]:
    """The folder of each step's result, by the step's id."""
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    return folders(run_recipe(recipe, place / out, plugins, machine=Machine(), quiet=True))
