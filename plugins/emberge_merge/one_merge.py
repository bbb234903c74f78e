"""One merge without a recipe file, by `emberge merge` or `merge`: a recipe of one step is checked and run."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from emberge import (
    Machine,
    PluginError,
    Plugins,
    Problem,
    RecipeError,
    StepResult,
    check_recipe,
    load_plugins,
    load_recipe,
    parse_recipe,
    run_recipe,
    suggest,
)
from emberge.devices import find_machine
from emberge.errors import OutInUseError, is_temporary
from emberge.files import FileLock, publish, sync
from emberge.options import document_options
from emberge.recipes import (
    Recipe,
    StepsFailedError,
    complete_reference,
    read_recipe_text,
    translate_recipe,
)
from emberge.wording import count_noun, make_printable
from emberge.yaml_nodes import read_yaml, to_plain, write_yaml

from emberge_merge.loaded_models import (
    build_mergekit_config,
    place_loaded_models,
    saving_loaded_models,
)
from emberge_merge.steps.merge import Merge

STEP_ID = "merged"
# What the place of an option begins with in the recipe; messages name it `merge.strategy`.
_STEP_PREFIX = f"recipe.steps.{STEP_ID}."
# Options of the step `merge` as the command line writes them; all others are `--set NAME`.
_TYPED_OPTIONS = {"models": "merge", "weights": "--weight", "out_dtype": "--dtype"} | {
    name: f"--{name}" for name in ("strategy", "base", "template")
}
# What `merge` takes with a method of mergekit.
_OPTIONS_WITH_METHOD = frozenset({"method", "base_model", "parameters", "out_dtype"})
_OPTION_IN_PLACE = re.compile(r"^merge\.(?:strategy\.\w+\.)?(\w+)")
_OPTION_AS_YAML = re.compile(r"`(missing|rules): ([^`]+)`")
_OPTION_IN_TEXT = re.compile(
    r"(?:under|with|as) '(base|template|tokenizer)'(?! \w)|option '(weights|out_dtype)' of step 'merge'"
)


def merge(
    models: Sequence[Any] | str | os.PathLike[str],
    method: str | Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    out: Path | str,
    strategy: str | Mapping[str, Any] | Sequence[Any] | None = None,
    base: Any = None,
    weights: Sequence[float] | str | None = None,
    base_model: Any = None,
    parameters: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
    machine: Machine | None = None,
    quiet: bool = False,
    **options: Any,
) -> StepResult:
    """Merge models into the new folder `out` and return the result, as `emberge merge` does.

    `models` are folders, hub ids and other references to models, loaded models of sentence-transformers, or
    the file of another tool's merge, such as a mergekit YAML, which contains everything else. `strategy` has
    the form of a recipe's option: `"linear"`, `{"ties": {"density": 0.3}}`, or a list of links. `weights` are
    one number for each model, or `"size"`. `options` are further options of the step `merge`: `keep=0.5`,
    `template`, `out_dtype`.

    In place of `strategy`, `base` and `weights` it takes what `SentenceTransformer.merge` does: a `method` of
    mergekit by name, its `parameters`, and `base_model`. Anything else in second place is a strategy.

    The merge is checked first; warnings of the check are given as Python warnings. After a kill, the same
    call continues.

    Raises:
        RecipeError: if `out` exists, or the check finds an error.
    """
    plugins = plugins or load_plugins()
    out = Path(out)
    if not isinstance(method, str):
        if method is not None and strategy is not None:
            raise RecipeError(
                "the second argument is a strategy, and so is `strategy`; leave one out"
            )
        method, strategy = None, strategy if method is None else method
    options = {"strategy": strategy, "weights": weights, **options}
    options = {name: value for name, value in options.items() if value is not None}
    run = partial(
        run_one_merge,
        out=out,
        plugins=plugins,
        machine=machine,
        quiet=quiet,
        warn=partial(warnings.warn, stacklevel=3),  # at the caller of `merge`
    )
    of_mergekit = {"method": method, "base_model": base_model, "parameters": parameters}
    stated = [*options, *(n for n, v in {"base": base, **of_mergekit}.items() if v is not None)]
    if isinstance(models, str | os.PathLike):
        if stated:
            raise RecipeError(f"{models} defines the whole merge; leave out {', '.join(stated)}")
        return run(read_merge_file(Path(models), plugins))
    if strategy is None and not (base_model is None and parameters is None):
        method = method or "linear"  # the library's default
    _require_options_of_one_kind(method, stated)
    _require_free(out)
    named = {f"models[{number}]": model for number, model in enumerate(models)}
    others = {"base": base, "base_model": base_model} | {
        name: options[name] for name in ("template", "tokenizer") if name in options
    }
    placed, loaded = place_loaded_models(out, named | others)
    members = [placed[name] for name in named]
    if method is None:
        options |= {name: placed[name] for name in others if placed[name] is not None}
        recipe = describe_merge(members, options, plugins)
    else:
        config = build_mergekit_config(members, method, placed["base_model"], parameters or {})
        recipe = _read_mergekit_config(config | options, plugins)
    with saving_loaded_models(loaded):
        result = run(recipe)
    if not quiet:
        print(f"{STEP_ID}: {out}", file=sys.stderr)
    return result


def _require_options_of_one_kind(method: str | None, stated: Sequence[str]) -> None:
    """Require options of mergekit with a method of mergekit, and those of the step without one."""
    if method is None and {"base_model", "parameters"} & set(stated):
        raise RecipeError(
            "base_model and parameters belong to a method of mergekit; leave `strategy` out"
        )
    unused = [name for name in stated if name not in _OPTIONS_WITH_METHOD]
    if method is not None and unused:
        name, names_of_step = unused[0], [field.name for field in fields(Merge)]
        remedy = f"; write strategy={method!r}"
        remedy += "" if name in names_of_step else suggest(name, names_of_step)
        remedy = "; leave one out" if "strategy" in unused else remedy
        raise RecipeError(
            "the second argument is a method of mergekit (as in SentenceTransformer.merge) and takes no "
            f"`{name}`{suggest(name, _OPTIONS_WITH_METHOD) or remedy}"
        )


def _read_mergekit_config(config: Mapping[str, Any], plugins: Plugins) -> Recipe:
    """Return the recipe of a config of mergekit that nobody wrote, so that problems have no place in it.

    Raises:
        RecipeError: if the config has problems; of a strategy in place of a method, it says how to give it.
    """
    method = config["merge_method"]
    try:
        translated = translate_recipe(write_yaml(config), plugins)
    except RecipeError as error:
        if error.problems[0].message.startswith("there is no merge method"):
            with suppress(PluginError):
                plugins.find(method, "merge transform", "merge strategy")
                raise RecipeError(
                    f"'{method}' is no method of mergekit but a strategy; write strategy={method!r}"
                ) from None
        raise RecipeError([replace(one, where="") for one in error.problems]) from None
    node = None if translated is None else read_yaml(translated, str, [], what="the recipe")
    if node is None:
        raise RecipeError("a method of mergekit needs the plugin emberge_mergekit")
    recipe: Any = to_plain(node)
    return _parse_step(recipe["steps"][STEP_ID]["merge"], plugins)


def run_verb(options: argparse.Namespace, plugins: Plugins) -> int:
    """Merge models into one folder, as described by the command line or another tool's file."""
    is_file = bool(options.models) and Path(options.models[0]).is_file()
    show = str if is_file else _name_options_as_typed

    def warn(text: str) -> None:
        if not options.quiet:
            print(f"warning: {make_printable(show(text))}", file=sys.stderr)

    try:
        run_one_merge(
            read_merge(options, plugins),
            options.out,
            plugins,
            machine=find_machine(options.devices, options.workers, options.memory),
            quiet=options.quiet,
            warn=warn,
        )
    except RecipeError as error:
        raise RecipeError([Problem(show(str(problem))) for problem in error.problems]) from error
    print(f"merged: {options.out}")
    return 0


def _name_options_as_typed(text: str) -> str:
    """Return a message on the step `merge` with options as the command line writes them: `--template`."""

    def name(option: str) -> str:
        return _TYPED_OPTIONS.get(option, f"--set {option}")

    text = _OPTION_AS_YAML.sub(lambda found: f"`--set {quote(f'{found[1]}={found[2]}')}`", text)
    text = _OPTION_IN_PLACE.sub(lambda found: name(found[1]), text)
    return _OPTION_IN_TEXT.sub(
        lambda found: f"by {name(found[1])}" if found[1] else f"option {name(found[2])}", text
    )


def read_merge(options: argparse.Namespace, plugins: Plugins) -> Recipe:
    """Return the recipe of the merge that a command line describes, or of the file that it names.

    Raises:
        RecipeError: if an option has no value or is given in addition to a file, or the recipe has a problem.
    """
    config = Path(options.models[0]) if options.models else None
    if config is not None and config.is_file():
        _refuse_options_of_file(config, options)
        return read_merge_file(config, plugins, options.overrides)
    step_options: dict[str, Any] = {
        "strategy": _read_value(options.strategy, "--strategy") if options.strategy else None,
        "weights": _read_weights(options.weight) if options.weight else None,
        "base": options.base,
        "template": options.template,
        "out_dtype": options.dtype,
    }
    step_options = {name: value for name, value in step_options.items() if value is not None}
    settings = _read_settings(options.overrides) if options.overrides else {}
    if not options.models and "models" not in settings:
        raise RecipeError("name the models to merge, or one mergekit YAML")
    return describe_merge(options.models, step_options, plugins, settings)


def _refuse_options_of_file(config: Path, options: argparse.Namespace) -> None:
    """Refuse options that the file `config` itself contains; `--set seed=3` and `--set id.x.y=1` are none."""
    names = ("strategy", "base", "template", "weight", "dtype")
    repeated = [*options.models[1:], *(f"--{name}" for name in names if getattr(options, name))]
    settings = (override.partition("=")[0].strip() for override in options.overrides)
    repeated += [f"--set {name}" for name in settings if "." not in name and name != "seed"]
    if repeated:
        raise RecipeError(f"{config} says what is merged and how; leave out {', '.join(repeated)}")


def _read_weights(texts: Iterable[str]) -> tuple[float, ...]:
    words = [word for text in texts for word in text.split(",")]
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise RecipeError(f"--weight {','.join(words)}: weights are numbers: 0.5,0.3") from None


def _read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the options in `texts` by name; each text is `name=value`, its value in YAML."""
    settings: dict[str, Any] = {}
    for text in texts:
        where = f"--set {text}"
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or not value:
            raise RecipeError(f"{where}: write it as option=value")
        if name in settings:
            raise RecipeError(f"{where}: '{name}' is set twice; leave one out")
        settings[name] = _read_value(value, where)
    return settings


def _read_value(text: str, where: str) -> Any:
    problems: list[Problem] = []
    node = read_yaml(text, lambda _: where, problems, what="the value")
    if node is None:
        raise RecipeError(problems)
    return to_plain(node)


def describe_merge(
    models: Sequence[str | os.PathLike[str]],
    options: Mapping[str, Any],
    plugins: Plugins,
    settings: Mapping[str, Any] | None = None,
) -> Recipe:
    """Build the recipe of one step `merge` with these options; relative folders start at the current folder.

    Each problem names its option: `merge.strategy`. The `settings` are options of the strategy, if it has one
    of the name, or else of the step.

    Raises:
        RecipeError: if the numbers of weights and models differ, an option is given twice, or the recipe has
            a problem.
    """
    options = {"models": models, **options}
    if settings:
        options = _place_settings(settings, options, plugins)
    members = [_name_model(model) for model in options.pop("models")]
    weights = options.get("weights")
    if weights is not None and not isinstance(weights, str | os.PathLike):
        weights = list(options.pop("weights"))
        if len(weights) != len(members):
            raise RecipeError(
                f"{count_noun(len(weights), 'weight')} for {count_noun(len(members), 'model')}; "
                "give one each, or none"
            )
        members = [
            {"model": model, "weight": weight}
            for model, weight in zip(members, weights, strict=True)
        ]
    for name in ("base", "template", "tokenizer"):
        if options.get(name) is not None:
            options[name] = _name_model(options[name])
    return _parse_step({"models": members, **options} if members else options, plugins)


def _parse_step(step: Mapping[str, Any], plugins: Plugins) -> Recipe:
    """Return the recipe of one step `merge`, in whose problems each place starts at the step."""
    try:
        recipe = parse_recipe({"steps": {STEP_ID: {"merge": step}}}, plugins)
    except RecipeError as error:
        problems = [
            replace(one, where=one.where.removeprefix(_STEP_PREFIX)) for one in error.problems
        ]
        raise RecipeError(problems) from None
    (merge_step,) = recipe.steps
    merge_step = replace(
        merge_step,
        where=merge_step.where.removeprefix(_STEP_PREFIX),
        lines={name: at.removeprefix(_STEP_PREFIX) for name, at in merge_step.lines.items()},
    )
    return replace(recipe, steps=(merge_step,), path=Path("merge"))


def _place_settings(
    settings: Mapping[str, Any], options: Mapping[str, Any], plugins: Plugins
) -> dict[str, Any]:
    """Return the options of the step with the settings, each at the strategy or at the step that has it."""
    options = {name: value for name, value in options.items() if name != "models" or value}
    strategy = options.get("strategy", settings.get("strategy"))
    names_of_strategy = _list_options(strategy, plugins)
    names_of_step = {field.name for field in fields(Merge)}
    strategy_options: dict[str, Any] = {}
    for name, value in settings.items():
        if name in names_of_strategy or (isinstance(strategy, str) and name not in names_of_step):
            strategy_options[name] = value
        elif name in options:
            raise RecipeError(f"--set {name}: '{name}' is given twice; leave one out")
        else:
            options[name] = value
    if strategy_options:
        options["strategy"] = {strategy: strategy_options}
    return {"models": (), **options}


def _list_options(strategy: Any, plugins: Plugins) -> set[str]:
    """Return the names of a strategy's options; none for a list of links, or if it does not exist."""
    if not isinstance(strategy, str):
        return set()
    try:
        component = plugins.find(strategy, "merge transform", "merge strategy")
    except PluginError:  # the reading of the recipe names it
        return set()
    return {option.name for option in document_options(component, plugins)}


def read_merge_file(path: Path, plugins: Plugins, overrides: Sequence[str] = ()) -> Recipe:
    """Read another tool's merge, such as a mergekit YAML; relative folders start at the file's folder.

    `overrides` have the form of `--set`.

    Raises:
        RecipeError: if the file has problems (has all of them), or is a recipe of ours.
    """
    if translate_recipe(read_recipe_text(path), plugins, path) is None:
        raise RecipeError(
            f"{path} is no merge of another tool; a recipe is run by `emberge run {path} --out DIR`"
        )
    return load_recipe(path, plugins, overrides)


def run_one_merge(
    recipe: Recipe,
    out: Path,
    plugins: Plugins,
    *,
    machine: Machine | None,
    quiet: bool,
    warn: Callable[[str], None],
) -> StepResult:
    """Check the recipe of a merge, run it, and publish the last step's model as the folder `out`; return it.

    The work is done in a hidden folder next to `out`, which one rename publishes. After a kill, or if the
    disk is full, the folder is kept, and the same command continues from it. `warn` is called with each
    warning of the check.

    Raises:
        RecipeError: if `out` exists, or the check finds an error.
    """
    work_folder = _require_free(out)
    report = check_recipe(recipe, plugins)
    report.raise_errors()
    for problem in report.of("warning"):
        warn(str(problem))
    try:
        results = run_recipe(
            recipe, work_folder, plugins, machine=machine, checked=report, quiet=quiet
        )
        sync(work_folder / ".work")  # or a power cut could restore work that looks unfinished
        publish(results[recipe.steps[-1].id].path.resolve(), out)
    except Exception as error:
        if not _is_worth_keeping(error):
            shutil.rmtree(work_folder, ignore_errors=True)
        raise
    shutil.rmtree(work_folder, ignore_errors=True)
    return StepResult(out.name, out)


def _require_free(out: Path) -> Path:
    """Return the work folder of a merge into `out`, which must be missing or an empty folder."""
    work_folder = out.parent / f".{out.name}.merging"
    if (out.is_dir() and any(out.iterdir())) or out.is_file():
        if not _is_under_way(work_folder):
            # The process was killed after all work was done.
            shutil.rmtree(work_folder, ignore_errors=True)
        raise RecipeError(f"{out} exists already; remove it or choose another folder")
    return work_folder


def _is_worth_keeping(error: Exception) -> bool:
    """Return whether to keep the work folder: another process uses it, or only a disk or network failed."""
    if isinstance(error, StepsFailedError):
        return any(map(_is_worth_keeping, error.errors.values()))
    return is_temporary(error) or isinstance(error, OutInUseError)


def _is_under_way(work_folder: Path) -> bool:
    return FileLock(work_folder / ".lock").find_holder() is not None or any(
        work_folder.glob(".work/*/*")
    )


def _name_model(model: Any) -> Any:
    """Return a model, or an entry of `models`, as a recipe names it.

    A bare name that is a folder here means the folder.

    Raises:
        RecipeError: if `model` is the name of a missing YAML file, which cannot be a model.
    """
    if isinstance(model, Mapping) and "model" in model:
        return {**model, "model": _name_model(model["model"])}
    if not isinstance(model, str):
        return model
    if Path(model).suffix in (".yaml", ".yml") and not Path(model).exists():
        raise RecipeError(f"{model}: there is no such file")
    return complete_reference(model).replace("$", "$$")
