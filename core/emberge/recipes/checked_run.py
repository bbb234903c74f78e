"""The run of a recipe from a command line or Python: read, checked, run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge.contracts import Launcher, Machine
from emberge.devices import find_machine
from emberge.files import FileLock, write_text
from emberge.interpreter import set_torch_defaults
from emberge.options import read_component
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.parse import convert_to_recipe
from emberge.recipes.preflight import CheckReport, check_recipe
from emberge.recipes.recipe import Recipe
from emberge.recipes.run.recipe_run import Executor, InThisProcess, RecipeRun
from emberge.recipes.run.step_result import StepResult
from emberge.recipes.run.step_run import explain_disk_full
from emberge.results import OutFolder


def run_recipe(
    recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
    out: Path | str,
    plugins: Plugins | None = None,
    *,
    machine: Machine | None = None,
    checked: CheckReport | None = None,
    launcher: Executor | str | None = None,
    allow_upload: bool = False,
    quiet: bool = False,
) -> dict[str, StepResult]:
    """Run a recipe's steps into the folder `out` and return each step's result by its id.

    `recipe` is Python data (`{"steps": {id: {kind: options}}}`), a file, or the name of a shipped recipe; it
    is read and checked first, and warnings of the check are given as Python warnings. A `Recipe` is run as
    it is; if its caller has called `check_recipe`, steps use the plans of the report `checked`. `plugins`
    defaults to all that are installed.

    A step that an earlier run finished under the same fingerprint is skipped; an interrupted step continues.
    If a step fails, the steps that do not need it still run. `machine` defaults to all of this machine;
    `quiet` asks reporters to print nothing. A `launcher` (`"local"`) runs steps in parallel, each in a
    separate process; without a launcher, steps run one after another in this process. Steps that upload need
    `allow_upload`.

    Raises:
        RecipeError: before any work, if the recipe has problems, or a step uploads and `allow_upload` is
            False.
        OutInUseError: if another run works in `out`.
        RequirementError: if all steps are done and a requirement of the recipe is not met.
        StepsFailedError: if several steps failed; a single error is raised as it is.
    """
    set_torch_defaults()
    plugins = plugins or load_plugins()
    out_folder = OutFolder(Path(out))
    read = convert_to_recipe(recipe, plugins)
    if not isinstance(recipe, Recipe):
        checked = check_recipe(read, plugins)
        warn_or_raise(checked)
    read.require_upload_allowed(allow_upload)
    if isinstance(launcher, str):
        launcher = read_component(launcher, Launcher, plugins, "launcher")
    out_folder.prepare()
    with explain_disk_full(out_folder), FileLock(out_folder.lock).lock():
        out_folder.clear_torn()
        if read.text:
            write_text(out_folder.path / "recipe.yaml", read.kept_text)
        plans = checked.plans if checked is not None else {}
        run = RecipeRun(read, out_folder, plugins, machine or find_machine(), plans)
        run.execute(launcher or InThisProcess(), quiet=quiet)
    return {step.id: StepResult(step.id, out_folder.link(step.id)) for step in read.steps}


def warn_or_raise(report: CheckReport) -> None:
    """Raise the errors that a check found, or give its warnings as Python warnings.

    Raises:
        RecipeError: if there are errors; has all of them.
    """
    report.raise_errors()
    for problem in report.of("warning"):
        warnings.warn(str(problem), stacklevel=3)
