"""Forgetting of keys in an OUT: notes them, retrains the members that had their rows, and merges again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.data import KeyList
from emberge.errors import RecipeError
from emberge.files import JSON_LIMIT, UnsoundFileError, read_regular, write_json
from emberge.plugins import Plugins
from emberge.recipes.checked_run import run_recipe
from emberge.recipes.checks.preflight import check_recipe
from emberge.recipes.forgetting.forgotten_rows import RowsReport, trace_keys
from emberge.recipes.forgetting.removal import remove_forgotten
from emberge.recipes.forgetting.touched_steps import (
    ForgettingPlan,
    plan_forgetting,
    without_steps,
)
from emberge.recipes.forgotten import (
    add_forgotten,
    read_forgotten,
    without_forgotten,
    without_rows,
)
from emberge.recipes.parse.parse import parse_recipe
from emberge.recipes.parse.shipped import named_recipe
from emberge.recipes.recipe import Recipe
from emberge.results import NoRunError, OutFolder

_OVERRIDE = "# run with --set "


def read_kept_recipe(out: Path, plugins: Plugins, folder: Path, file: str | None = None) -> Recipe:
    """Return the recipe that was last run into `out`, with the same `--set` options.

    `file` is the recipe's file, if it is at hand; otherwise OUT's copy is read, and relative paths in it
    start at `folder`.

    Raises:
        NoRunError: if no recipe was run in `out`.
        RecipeError: if the recipe cannot be read here.
    """
    path = out / "recipe.yaml"
    try:
        text = read_regular(path, limit=JSON_LIMIT).decode("utf-8")
    except FileNotFoundError:
        raise NoRunError(f"{out} holds no run of a recipe with a file") from None
    except (OSError, UnsoundFileError, UnicodeDecodeError) as error:
        raise NoRunError(f"{path} cannot be read: {error}") from None
    overrides: list[str] = []
    while text.startswith(_OVERRIDE):
        line, _, text = text.partition("\n")
        overrides.append(line.removeprefix(_OVERRIDE))
    if file is not None:
        return named_recipe(file, plugins, overrides).require_sound()
    return parse_recipe(text, plugins, path=folder / path.name, overrides=overrides)


@dataclass(frozen=True)
class Forgetting:
    """Keys to forget in an OUT, whose recipe is run again without their rows."""

    recipe: Recipe
    out: Path
    plugins: Plugins
    keys: Path
    """The text file that lists the keys."""
    digests: Collection[bytes]
    plan: ForgettingPlan

    @classmethod
    def of(
        cls, out: Path, keys: Path, plugins: Plugins, *, recipe: str | None = None, folder: Path
    ) -> Forgetting:
        """Plan to forget the keys that a text file lists, one in each line, in a run's OUT.

        `recipe` is the file of the recipe that was run; by default OUT's copy is read, and relative paths in
        it start at `folder`.

        Raises:
            DataError: if the list of keys or the data cannot be read.
            NoRunError: if no recipe was run in `out`.
            RecipeError: if the recipe cannot be read here.
        """
        digests = KeyList.read_hashes(keys)
        kept_recipe = read_kept_recipe(out, plugins, folder, recipe)
        plan = plan_forgetting(kept_recipe, out, plugins, digests)
        return cls(kept_recipe, out, plugins, keys, digests, plan)

    def remember(self) -> None:
        """Keep the keys with OUT, so that this and every later run leaves their rows out.

        Raises:
            RecipeError: if the recipe cannot be run without the rows; nothing is changed then.
        """
        smaller = without_rows(without_forgotten(self.recipe, self.out), self.keys)
        check_recipe(smaller, self.plugins).raise_errors()
        add_forgotten(self.out, self.digests)

    def run_untouched(self, **options: Any) -> Recipe:
        """Merge the members that never had the rows, with all that is made of it, and return that recipe.

        Raises:
            RecipeError: if nothing is left to merge.
        """
        smaller = without_steps(self.recipe, [step.id for step in self.plan.given])
        untouched = {step.id for step in self.plan.untouched}
        if not any(step.id not in untouched for step in smaller.steps):
            raise RecipeError(
                "--now: no step merges members that were not given these rows; leave --now out"
            )
        check_recipe(smaller, self.plugins, out=self.out).raise_errors()
        run_recipe(smaller, self.out, self.plugins, **options)
        return smaller

    def run_again(self, **options: Any) -> list[RowsReport]:
        """Run the recipe without the rows, remove what was made of them, and trace every model's rows.

        Returns:
            A report for each model that no other step of the recipe needs; each is also written to
            `OUT/forgotten-<step>.json`.

        Raises:
            EmbergeError: if the recipe cannot be run, or if a model was given the rows all the same.
        """
        check_recipe(self.recipe, self.plugins, out=self.out).raise_errors()
        run_recipe(self.recipe, self.out, self.plugins, **options)
        keys = read_forgotten(self.out)
        if keys is not None:
            remove_forgotten(self.out, keys)
        needed = {need for step in self.recipe.steps for need in step.needs}
        models = [s.id for s in self.recipe.steps if s.step.produces == "model"]
        place = OutFolder(self.out)
        reports = []
        for step in [s for s in models if s not in needed] or models:
            report = trace_keys(place.link(step), self.digests, self.plugins, self.recipe)
            write_json(place.certificate(step), report.certificate)
            reports.append(report)
        return reports


def trace_rows(
    result: Path, keys: Path, plugins: Plugins, *, recipe: str | None = None, folder: Path
) -> RowsReport:
    """Return what is known of the rows that a result and all its ancestors were given.

    `keys` is a text file with a key in each line. The rows are selected again from the data as they are now
    if the recipe is at hand: the file `recipe`, or OUT's copy, whose relative paths start at `folder`.

    Raises:
        DataError: if the list of keys cannot be read.
        EmbergeError: if `result` is no result of a run.
    """
    digests = KeyList.read_hashes(keys)
    try:
        kept_recipe = read_kept_recipe(result.resolve().parent, plugins, folder, recipe)
    except NoRunError:
        kept_recipe = None
    return trace_keys(result, digests, plugins, kept_recipe)
