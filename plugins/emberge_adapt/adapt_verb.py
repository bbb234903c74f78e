"""The verb `adapt`: the recipe printed, or run and its outcome shown."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from emberge import RecipeError, RequirementError
from emberge.devices import find_machine

from emberge_adapt.adapt_data import read_columns
from emberge_adapt.adapt_plan import DEFAULT_MODEL, require_effort
from emberge_adapt.adapt_run import AdaptRequest, prepare, run_adaptation

if TYPE_CHECKING:
    from emberge import Plugins


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
    outcome = run_adaptation(
        adaptation,
        options.out,
        plugins,
        machine=find_machine(options.devices, options.workers, options.memory),
        quiet=options.quiet,
    )
    print("\n".join(outcome.lines()))
    return RequirementError.exit_code if outcome.unmet else 0
