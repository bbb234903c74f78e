"""The function `adapt`, for scripts and notebooks, and the verb: an adaptation as one call."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import RecipeError, RequirementError, load_plugins
from emberge.devices import find_machine

from emberge_adapt.adapt_data import read_columns
from emberge_adapt.adapt_outcome import AdaptOutcome
from emberge_adapt.adapt_plan import DEFAULT_MODEL, require_effort
from emberge_adapt.adapt_run import AdaptRequest, prepare, run_adaptation

if TYPE_CHECKING:
    from emberge import Plugins


def adapt(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str = DEFAULT_MODEL,
    effort: str = "normal",
    columns: Mapping[str, str] | None = None,
    documents: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    seed: int = 0,
    devices: str | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    quiet: bool = False,
) -> AdaptOutcome:
    """Adapt a model to data: train, merge with the base, test, report; return the outcome.

    The arguments are the options of `emberge adapt`; `columns` is `{"query": "question", "document":
    "answer"}`. A call that was interrupted goes on when it is repeated. Without a gain beyond chance the
    outcome has `has_gain` False, and says what would help.

    Raises:
        DataError: before any work, if the data cannot be used.
        CheckpointError: before any work, if the model does not exist or is no encoder.
        RecipeError: before any work, if an option is wrong, or `out` has another run.
    """
    plugins = load_plugins()
    request = AdaptRequest(
        data=os.fspath(data),
        model=model,
        effort=require_effort(effort),
        columns=read_columns(f"{part}={column}" for part, column in (columns or {}).items()),
        documents=None if documents is None else os.fspath(documents),
        test=None if test is None else os.fspath(test),
        seed=seed,
    )
    machine = find_machine(devices, workers, memory)
    adaptation = prepare(request, plugins)
    return run_adaptation(adaptation, Path(out), plugins, machine=machine, quiet=quiet)


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the recipe, or run it and print the outcome; return the exit code.

    Raises:
        RecipeError: if --out is missing or belongs to another run.
    """
    request = AdaptRequest(
        data=options.data,
        model=options.model or DEFAULT_MODEL,
        effort=require_effort(options.effort),
        columns=read_columns(options.columns),
        documents=options.documents,
        test=options.test,
        seed=options.seed,
    )
    adaptation = prepare(request, plugins)
    if options.print:
        print(adaptation.recipe_text, end="")
        return 0
    if options.out is None:
        raise RecipeError("name the folder of the results by --out DIR, or only --print the recipe")
    machine = find_machine(options.devices, options.workers, options.memory)
    outcome = run_adaptation(adaptation, options.out, plugins, machine=machine, quiet=options.quiet)
    print("\n".join(outcome.lines()))
    return RequirementError.exit_code if outcome.unmet else 0
