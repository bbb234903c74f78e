"""The merge that one command line describes: a recipe of one step, whose result is the requested folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge.contracts import Machine
from emberge.errors import Problem, RecipeError, is_temporary
from emberge.files import NotOursError, OutInUseError, lock_holder, publish, require_ours, sync
from emberge.plugins import Plugins
from emberge.recipes import (
    CheckReport,
    Recipe,
    StepsFailedError,
    build_recipe,
    check_recipe,
    is_folder,
    load_recipe,
    read_text,
    run_recipe,
    translate,
)
from emberge.yaml_nodes import Fields, node_of, plain, read_yaml

STEP = "merged"
_PLACE = "command line"


@dataclass(frozen=True)
class CommandLineMerge:
    """The merge of one command line; `options` are the strategy's options, `name=value` with YAML values."""

    models: Sequence[str]
    strategy: str | None = None
    base: str | None = None
    template: str | None = None
    weights: Sequence[float] = ()
    options: Sequence[str] = ()
    dtype: str | None = None

    def recipe(self, plugins: Plugins) -> Recipe:
        """Build the recipe of one step; relative folders start at the current folder.

        Raises:
            RecipeError: if an option has no value, the numbers of weights and models differ, or the recipe
                has a problem.
        """
        options: dict[str, Any] = {"models": self._build_models()}
        if self.strategy is not None or self.options:
            options["strategy"] = self._build_strategy()
        for name, model in (("base", self.base), ("template", self.template)):
            if model is not None:
                options[name] = _name_model(model)
        if self.dtype is not None:
            options["out_dtype"] = self.dtype
        root = {"steps": {STEP: {"merge": options}}}
        nodes = node_of(root, _PLACE)
        assert isinstance(nodes, Fields)
        recipe = build_recipe(nodes, plugins, Path()).require_sound()
        # Only the text's hash is used, which the merged weights name. JSON is also YAML.
        return replace(recipe, path=Path(_PLACE), text=json.dumps(root, ensure_ascii=False))

    def _build_models(self) -> list[Any]:
        if not self.weights:
            return [_name_model(model) for model in self.models]
        if len(self.weights) != len(self.models):
            raise RecipeError(
                f"{len(self.weights)} weights for {len(self.models)} models; give one each, or none"
            )
        pairs = zip(self.models, self.weights, strict=True)
        return [{"model": _name_model(model), "weight": weight} for model, weight in pairs]

    def _build_strategy(self) -> Any:
        """Return the strategy in the form of a recipe's option: a name, a chain, or a name with options."""
        problems: list[Problem] = []
        options: dict[str, Any] = {}
        for option in self.options:
            where = f"--set {option}"
            name, equals, value = (part.strip() for part in option.partition("="))
            if not equals or not name or not value:
                raise RecipeError(f"{where}: write it as option=value")
            if name in options:
                raise RecipeError(f"{where}: '{name}' is set twice; leave one out")
            options[name] = _read_value(value, where, problems)
        if self.strategy is None:
            raise RecipeError(f"--set {self.options[0]}: name the --strategy that has this option")
        strategy = _read_value(self.strategy, "--strategy", problems)
        if problems:
            raise RecipeError(problems)
        if options and not isinstance(strategy, str):
            raise RecipeError("--set goes with the name of a strategy; a chain has its own options")
        return {strategy: options} if options else strategy


@dataclass(frozen=True)
class MergeConfig:
    """A merge from another tool's file, such as a mergekit YAML; `overrides` have the form of `--set`."""

    path: Path
    overrides: Sequence[str] = ()

    def recipe(self, plugins: Plugins) -> Recipe:
        """Read the file as a recipe; relative folders start at the file's folder.

        Raises:
            RecipeError: if the file has problems (has all of them), or is a recipe of ours.
        """
        if translate(read_text(self.path), plugins, self.path) is None:
            raise RecipeError(
                f"{self.path} is no merge of another tool; a recipe is run by "
                f"`emberge run {self.path} --out DIR`"
            )
        return load_recipe(self.path, plugins, self.overrides)


def run_one_merge(
    merge: CommandLineMerge | MergeConfig,
    out: Path,
    plugins: Plugins,
    *,
    machine: Machine | None = None,
    quiet: bool = False,
    show: Callable[[CheckReport], None] = CheckReport.raise_errors,
) -> None:
    """Check the merge, do it, and publish the model as the folder `out` by one rename.

    The work is done in a hidden folder next to `out`. After a kill, or if the disk is full, the folder is
    kept, and the same command continues from it. `show` gets the report of the check; it may raise an error
    to stop the merge.

    Raises:
        RecipeError: if `out` exists, or the check finds an error.
        NotOursError: if another user made the hidden folder, or it is a link.
    """
    work_folder = out.parent / f".{out.name}.merging"
    if (out.is_dir() and any(out.iterdir())) or out.is_file():
        if not _is_under_way(work_folder):
            _remove_work(work_folder)  # the process was killed after all work was done
        raise RecipeError(f"{out} exists already; remove it or choose another --out")
    recipe = merge.recipe(plugins)
    final_step_id = _find_last_step(recipe)
    show(check_recipe(recipe, plugins))
    try:
        results = run_recipe(recipe, work_folder, plugins, machine=machine, quiet=quiet)
        sync(
            work_folder / ".work"
        )  # otherwise a power cut could restore work that looks unfinished
        publish(results[final_step_id].resolve(), out)
    except Exception as error:
        if not _is_worth_keeping(error):
            _remove_work(work_folder)
        raise
    _remove_work(work_folder)


def _find_last_step(recipe: Recipe) -> str:
    """Return the id of the step whose model is requested: the step that no other step needs.

    Raises:
        RecipeError: if there are several such steps.
    """
    needed = {name for step in recipe.steps for name in step.needs}
    last_steps = [step.id for step in recipe.steps if step.id not in needed]
    if len(last_steps) > 1 and STEP not in last_steps:
        raise RecipeError(
            f"{recipe.path} makes several models, {', '.join(last_steps)}; get them all by "
            f"`emberge run {recipe.path} --out DIR`"
        )
    return last_steps[0] if len(last_steps) == 1 else STEP


def _is_worth_keeping(error: Exception) -> bool:
    """Return whether to keep the work folder: another process uses it, or only a disk or network failed."""
    if isinstance(error, StepsFailedError):
        return any(map(_is_worth_keeping, error.errors.values()))
    return is_temporary(error) or isinstance(error, OutInUseError)


def _is_under_way(beside: Path) -> bool:
    return lock_holder(beside / ".lock") is not None or any(beside.glob(".work/*/*"))


def _remove_work(beside: Path) -> None:
    """Remove the hidden folder, unless it is not ours."""
    with suppress(NotOursError, FileNotFoundError):
        require_ours(beside)
        shutil.rmtree(beside, ignore_errors=True)


def _name_model(model: str) -> str:
    """Return a model as a recipe names it; a bare name that is a folder here means the folder.

    Raises:
        RecipeError: if `model` is the name of a missing YAML file, which cannot be a model.
    """
    if Path(model).suffix in (".yaml", ".yml") and not Path(model).exists():
        raise RecipeError(f"{model}: there is no such file")
    if not is_folder(model) and Path(model).is_dir():
        model = f"./{model}"
    return model.replace("$", "$$")


def _read_value(text: str, where: str, problems: list[Problem]) -> Any:
    node = read_yaml(text, lambda _: where, problems, what="the value")
    return None if node is None else plain(node)
