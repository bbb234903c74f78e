"""The verb `merge`: the merge that one command line describes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from emberge import Plugins, Problem, RecipeError
from emberge.devices import find_machine
from emberge.recipes import Recipe
from emberge.wording import printable
from emberge.yaml_nodes import plain, read_yaml

from emberge_merge.one_merge import describe_merge, read_merge_file, run_one_merge


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Merge models into one folder, as described by the command line or another tool's file."""

    def warn(text: str) -> None:
        if not options.quiet:
            print(f"warning: {printable(text)}", file=sys.stderr)

    run_one_merge(
        read_merge(options, plugins),
        options.out,
        plugins,
        machine=find_machine(options.devices, options.workers, options.memory),
        quiet=options.quiet,
        warn=warn,
    )
    print(f"merged: {options.out}")
    return 0


def read_merge(options: argparse.Namespace, plugins: Plugins) -> Recipe:
    """Return the recipe of the merge that a command line describes, or of the file that it names.

    Raises:
        RecipeError: if an option has no value, an option is given beside a file, or the recipe has a problem.
    """
    config = Path(options.models[0]) if options.models else None
    if config is not None and config.is_file():
        _refuse_options_beside(config, options)
        return read_merge_file(config, plugins, options.overrides)
    problems: list[Problem] = []
    strategy = options.strategy and _read_value(options.strategy, "--strategy", problems)
    settings = _read_settings(options.overrides, problems)
    if problems:
        raise RecipeError(problems)
    merge_options: dict[str, Any] = {
        "strategy": strategy,
        "weights": _read_weights(options.weight) or None,
        "base": options.base,
        "template": options.template,
        "out_dtype": options.dtype,
    }
    merge_options = {name: value for name, value in merge_options.items() if value is not None}
    return describe_merge(options.models, merge_options, plugins, settings)


def _refuse_options_beside(config: Path, options: argparse.Namespace) -> None:
    """Refuse options that the file `config` itself contains; `--set seed=3` and `--set id.x.y=1` are none."""
    names = ("strategy", "base", "template", "weight", "dtype")
    given = [*options.models[1:], *(f"--{name}" for name in names if getattr(options, name))]
    settings = (override.partition("=")[0].strip() for override in options.overrides)
    given += [f"--set {name}" for name in settings if "." not in name and name != "seed"]
    if given:
        raise RecipeError(f"{config} says what is merged and how; leave out {', '.join(given)}")


def _read_weights(texts: Iterable[str]) -> tuple[float, ...]:
    words = [word for text in texts for word in text.split(",")]
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise RecipeError(f"--weight {','.join(words)}: weights are numbers: 0.5,0.3") from None


def _read_settings(texts: Sequence[str], problems: list[Problem]) -> dict[str, Any]:
    """Return the options in `texts` by name; each text is `name=value`, its value in YAML."""
    settings: dict[str, Any] = {}
    for text in texts:
        where = f"--set {text}"
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or not value:
            raise RecipeError(f"{where}: write it as option=value")
        if name in settings:
            raise RecipeError(f"{where}: '{name}' is set twice; leave one out")
        settings[name] = _read_value(value, where, problems)
    return settings


def _read_value(text: str, where: str, problems: list[Problem]) -> Any:
    node = read_yaml(text, lambda _: where, problems, what="the value")
    return None if node is None else plain(node)
