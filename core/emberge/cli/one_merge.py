"""A merge of one command line: a recipe of one step whose result is the folder asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emberge.contracts.step import Machine
from emberge.errors import RecipeError
from emberge.files.atomic import publish
from emberge.files.locks import OutInUseError, lock_holder
from emberge.plugins import Plugins
from emberge.recipes.checks.preflight import Report, check_recipe
from emberge.recipes.folder.locate import is_folder
from emberge.recipes.parse.parse import load_recipe, parse_recipe
from emberge.recipes.parse.translate import read_text, translate
from emberge.recipes.recipe import Recipe
from emberge.recipes.run.run_recipe import run_recipe

__all__ = ["MergeConfig", "OneMerge", "run_one_merge"]

STEP = "merged"
_PLACE = "command line"


@dataclass(frozen=True)
class OneMerge:
    """What `emberge merge` was asked for. `options` are `name=value` of the strategy, values as in YAML."""

    models: Sequence[str]
    strategy: str
    base: str | None = None
    template: str | None = None
    weights: Sequence[float] = ()
    options: Sequence[str] = ()
    dtype: str | None = None

    @property
    def text(self) -> str:
        """The recipe.

        Raises:
            RecipeError: for another number of weights than models, or an option without a value.
        """
        if self.weights and len(self.weights) != len(self.models):
            raise RecipeError(
                f"{len(self.weights)} weights for {len(self.models)} models; give one each, or none"
            )
        weights: Sequence[float | None] = self.weights or [None] * len(self.models)
        pairs = zip(self.models, weights, strict=True)
        lines = ["steps:", f"  {STEP}:", "    merge:", "      models:"]
        lines += [f"        - {_model(model, weight)}" for model, weight in pairs]
        if self.base is not None:
            lines.append(f"      base: {_named(self.base)}")
        if self.template is not None:
            lines.append(f"      template: {_named(self.template)}")
        if self.dtype is not None:
            lines.append(f"      out_dtype: {self.dtype}")
        options = [_option(option) for option in self.options]
        if not options:
            return "\n".join([*lines, f"      strategy: {self.strategy}", ""])
        lines += ["      strategy:", f"        {self.strategy}:"]
        return "\n".join([*lines, *(f"          {option}" for option in options), ""])

    def recipe(self, plugins: Plugins) -> Recipe:
        """The recipe, read; folders are relative to the one we are in.

        Raises:
            RecipeError: for whatever is wrong with it.
        """
        try:
            recipe = parse_recipe(self.text, plugins, path=Path(_PLACE))
        except RecipeError as error:
            # The lines are those of a text that nobody wrote.
            raise RecipeError([replace(one, where=_PLACE) for one in error.problems]) from None
        steps = [
            replace(step, where=_PLACE, lines=dict.fromkeys(step.lines, _PLACE))
            for step in recipe.steps
        ]
        return replace(recipe, steps=tuple(steps))


@dataclass(frozen=True)
class MergeConfig:
    """A merge that another tool's file asks for, such as a mergekit YAML; `overrides` as of `--set`."""

    path: Path
    overrides: Sequence[str] = ()

    def recipe(self, plugins: Plugins) -> Recipe:
        """The recipe, read; folders are relative to the file.

        Raises:
            RecipeError: for whatever is wrong with it, and for a recipe of ours.
        """
        if translate(read_text(self.path), plugins, self.path) is None:
            raise RecipeError(
                f"{self.path} is no merge of another tool; a recipe is run by "
                f"`emberge run {self.path} --out DIR`"
            )
        return load_recipe(self.path, plugins, self.overrides)


def run_one_merge(
    merge: OneMerge | MergeConfig,
    out: Path,
    plugins: Plugins,
    *,
    machine: Machine | None = None,
    quiet: bool = False,
    tell: Callable[[Report], None] = Report.raise_errors,
) -> None:
    """Check the merge, do it, and publish the model as the folder `out` by one rename.

    The work is done in a hidden folder beside `out`, which stays only after a kill or when the disk takes
    no more, for the same command to go on from. `tell` hears what the check found, and stops the merge
    by raising.

    Raises:
        RecipeError: when `out` exists, or the check finds an error.
    """
    beside = out.parent / f".{out.name}.merging"
    if (out.is_dir() and any(out.iterdir())) or out.is_file():
        if not _under_way(beside):
            _forget(beside)  # a kill came after all was done
        raise RecipeError(f"{out} exists already; remove it or choose another --out")
    recipe = merge.recipe(plugins)
    last = _last_step(recipe)
    tell(check_recipe(recipe, plugins))
    try:
        results = run_recipe(recipe, beside, plugins, machine=machine, quiet=quiet)
        publish(results[last].resolve(), out)
    except Exception as error:
        if not _may_go_on(error):
            _forget(beside)
        raise
    _forget(beside)


def _last_step(recipe: Recipe) -> str:
    """The step whose model is asked for: the one that no other step needs.

    Raises:
        RecipeError: when there are several.
    """
    needed = {name for step in recipe.steps for name in step.needs}
    found = [step.id for step in recipe.steps if step.id not in needed]
    if len(found) > 1 and STEP not in found:
        raise RecipeError(
            f"{recipe.path} makes several models, {', '.join(found)}; get them all by "
            f"`emberge run {recipe.path} --out DIR`"
        )
    return found[0] if len(found) == 1 else STEP


def _may_go_on(error: Exception) -> bool:
    """Whether the work is still of use: another process is at it, or the disk would not take more of it."""
    return isinstance(error, OutInUseError) or isinstance(error.__cause__ or error, OSError)


def _under_way(beside: Path) -> bool:
    return lock_holder(beside / ".lock") is not None or any(beside.glob(".work/*/*"))


def _forget(beside: Path) -> None:
    shutil.rmtree(beside, ignore_errors=True)


def _model(model: str, weight: float | None) -> str:
    named = _named(model)
    return named if weight is None else f"{{model: {named}, weight: {weight!r}}}"


def _named(model: str) -> str:
    """A model as a recipe names it: on a command line a bare name that is a folder means the folder.

    Raises:
        RecipeError: for the name of a YAML file that is not there, which is no model's.
    """
    if Path(model).suffix in (".yaml", ".yml") and not Path(model).exists():
        raise RecipeError(f"{model}: there is no such file")
    if not is_folder(model) and Path(model).is_dir():
        model = f"./{model}"
    return json.dumps(model.replace("$", "$$"), ensure_ascii=False)


def _option(option: str) -> str:
    name, equals, value = option.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise RecipeError(f"--set {option}: write it as option=value")
    return f"{name.strip()}: {value.strip()}"
