"""The verbs of the command line: their table, a call for each, and the lines that show its outcome."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.contracts import Count
from emberge.errors import Problem, RecipeError, suggest
from emberge.interpreter import pause_collections
from emberge.plugin_verbs import (
    Verb,
    VerbOption,
    ask_user,
    build_number_reader,
    prepare_output_path,
)
from emberge.wording import count_noun, format_size, join_some, make_printable, shorten

if TYPE_CHECKING:
    from emberge.contracts import Machine
    from emberge.plugins import Plugins
    from emberge.recipes import CheckReport, RankTeam, Recipe


_RECIPE = (
    VerbOption("recipe", "a file, or the name of a shipped recipe", "RECIPE"),
    VerbOption(
        "--allow-plugins",
        "load the plugin files that the recipe names under `plugins`, which are code",
    ),
    VerbOption(
        "--set",
        "override an option, or a variable: ID.foreach.VARIABLE=[…]; may be given several times",
        "ID.KIND.OPTION=VALUE",
        repeated=True,
        stored_as="overrides",
    ),
)
# Largest number of unseen inputs that `check` lists without `--long`.
_MOST_LISTED_INPUTS = 2
_OUT = VerbOption("out", "the folder of a run", "OUT", Path)

VERBS: dict[str, Verb] = {
    "run": Verb(
        group="start",
        summary="run a recipe; finished steps are skipped, an interrupted run continues",
        examples="emberge run boom/demo --out out/demo\n"
        "emberge run recipe.yaml --out out --set members.train.learning_rate=2e-5\n"
        "emberge run recipe.yaml --out out --devices cuda:0,cuda:1 --memory 8GB\n"
        "emberge run recipe.yaml --out out --summary summary.md\n"
        "emberge run recipe.yaml --out out --launcher local\n"
        "emberge run release.yaml --out out --allow-upload\n"
        "emberge run recipe.yaml --out out --ranks 8\n"
        "torchrun --nnodes 2 --nproc-per-node 8 … -m emberge run recipe.yaml --out out\n"
        "accelerate launch --multi_gpu --num_processes 8 -m emberge run recipe.yaml --out out",
        options=(
            *_RECIPE,
            VerbOption("--out", "where results go", "DIR", Path, required=True),
            VerbOption(
                "--summary",
                "write outcome and tables as Markdown here",
                "FILE",
                prepare_output_path,
            ),
            VerbOption("--allow-upload", "let steps of the recipe upload, as `publish` does"),
        ),
        machine=True,
        machine_options=(
            VerbOption("--launcher", "run steps side by side: local, or a plugin's", "NAME"),
            VerbOption(
                "--ranks",
                "train by N processes, one a GPU; another model unless without dropout and with "
                "cross_rank losses",
                "N",
                build_number_reader(Count),
            ),
            VerbOption("--shard", "ranks split weights and optimizer (FSDP2)"),
        ),
        run="emberge.cli.verbs:run",
        resumes=True,
    ),
    "check": Verb(
        group="look",
        summary="report everything that is wrong with a recipe, without loading weights",
        examples="emberge check recipe.yaml\nemberge check boom/demo --offline\n"
        "emberge check recipe.yaml --long",
        options=(
            *_RECIPE,
            VerbOption("--offline", "use no network"),
            VerbOption(
                "--long",
                "also the plan and first rows of each step, and all that could not be looked at",
            ),
        ),
        run="emberge.cli.verbs:check",
    ),
    "status": Verb(
        group="look",
        summary="show what is done in an OUT and what is left, also while it is being run",
        examples="emberge status out",
        options=(_OUT,),
        run="emberge.cli.verbs:show_status",
        loads_plugins=False,
    ),
    "clean": Verb(
        group="maintain",
        summary="remove old results and work that runs left in an OUT, after showing it and asking",
        examples="emberge clean out\nemberge clean out --yes",
        options=(_OUT, VerbOption("--yes", "do not ask")),
        run="emberge.cli.verbs:clean",
        loads_plugins=False,
    ),
    "list": Verb(
        group="look",
        summary="list every component that the installed plugins add, or those that mention a word",
        examples='emberge list\nemberge list slerp\nemberge list --kind "merge strategy"',
        options=(
            VerbOption("having", "only what has it in name or documentation", "WORD", count="*"),
            VerbOption("--kind", 'only one kind, such as "loss"', "KIND"),
        ),
        run="emberge.cli.verbs:list_all",
    ),
    "show": Verb(
        group="look",
        summary="show what a component does, its options, and how a recipe uses it",
        examples="emberge show ties\nemberge show train:train",
        options=(VerbOption("component", "its name, or plugin:name", "COMPONENT"),),
        run="emberge.cli.verbs:show",
    ),
    "recipes": Verb(
        group="start",
        summary="list the recipes that come with emberge, or print one",
        examples="emberge recipes\nemberge recipes boom/demo > mine.yaml",
        options=(VerbOption("name", "print this one", "NAME", count="?"),),
        run="emberge.cli.verbs:show_recipes",
        loads_plugins=False,
    ),
    "schema": Verb(
        summary="print the JSON Schema of recipes, with the options of every installed plugin",
        examples="emberge schema > recipe.schema.json",
        run="emberge.cli.verbs:print_schema",
    ),
    "new-plugin": Verb(
        summary="write the repository of a new plugin: a strategy, a loss, a step and their tests",
        examples="emberge new-plugin acme --out ~/src/emberge-acme",
        options=(
            VerbOption("name", "letters, digits and underscores", "NAME"),
            VerbOption("--out", "default: ./emberge-NAME", "DIR", Path),
        ),
        run="emberge.cli.verbs:write_new_plugin",
        loads_plugins=False,
    ),
    "verify": Verb(
        group="maintain",
        summary="check a result against its provenance: every file that its step left",
        examples="emberge verify merged",
        options=(VerbOption("folder", "a step's result or a merged model", "DIR", Path),),
        run="emberge.cli.verbs:verify",
        loads_plugins=False,
    ),
}


# ── recipes ─────────────────────────────────────────────────────────────────────────────────────


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Check a recipe, run it, and show the folder of each result.

    With `--ranks`, this process reads the recipe and starts the ranks, which run the same command.
    """
    from emberge.devices import find_machine
    from emberge.processes import (
        choose_rank_count,
        end_with_starter,
        read_rank_and_size,
        run_ranks,
    )
    from emberge.recipes import check_recipe, run_recipe

    end_with_starter()
    recipe = _read_recipe(options, plugins)
    recipe.require_upload_allowed(options.allow_upload)
    machine = find_machine(options.devices, options.workers, options.memory)
    rank, started = read_rank_and_size()
    count = choose_rank_count(options.ranks, machine)
    if options.launcher and count > 1:
        raise RecipeError(
            "--launcher runs several steps, each by a process of its own, and --ranks one step by several; "
            "leave one of them out"
        )
    if options.shard and count == 1:
        raise RecipeError("--shard splits weights over ranks, and there is one; give --ranks N")
    if count > started:
        return run_ranks(options.words, count)
    if rank != 0:
        _form_team(options, machine).follow(recipe, options.out, plugins, machine)
        return 0
    report = check_recipe(recipe, plugins)
    require_check(report, quiet=options.quiet)
    team = _form_team(options, machine) if count > 1 else None
    with _showing_outcome(options, recipe):
        run_recipe(
            recipe,
            options.out,
            plugins,
            machine=machine,
            checked=report,
            executor=team or options.launcher,
            allow_upload=options.allow_upload,
            quiet=options.quiet,
        )
    if team is not None:
        team.dismiss()
    return 0


def _form_team(options: argparse.Namespace, machine: Machine) -> RankTeam:
    """Return the team of all ranks, which waits until the others have joined."""
    from emberge.recipes import form_team  # which loads torch

    # `accelerate launch --use_fsdp` means `--shard`.
    shard = options.shard or os.environ.get("ACCELERATE_USE_FSDP") == "true"
    return form_team(machine, shard=shard)


@contextlib.contextmanager
def _showing_outcome(options: argparse.Namespace, recipe: Recipe) -> Iterator[None]:
    """Show the folders of results after a run in the block, even one that fails, and write the summary."""
    from emberge.files import write_text
    from emberge.recipes import describe_finished_results, format_summary

    error: BaseException | None = None
    try:
        yield
    except BaseException as failure:
        error = failure
        raise
    finally:
        lines = describe_finished_results(options.out, recipe)
        print("".join(f"{line}\n" for line in lines), end="")
        if options.summary is not None:
            write_text(options.summary, format_summary(options.out, recipe, error))


def check(options: argparse.Namespace, plugins: Plugins) -> int:
    """Show every problem and plan of a recipe, as far as headers, configs and first rows reveal them."""
    from emberge.recipes import check_recipe

    recipe = _read_recipe(options, plugins)
    if recipe.upload_places:
        places = make_printable(", ".join(recipe.upload_places))
        print(f"a run uploads to {places}, and needs --allow-upload")
    with pause_collections():  # a check spends most of its time on imports
        report = check_recipe(recipe, plugins, deep=not options.offline)
    is_listed = options.long or len(report.unseen_places) <= _MOST_LISTED_INPUTS
    if options.long:
        _show_notes(report)
    if is_listed:
        _show_unseen(report)
    _show_warnings(report.of("warning"))
    report.raise_errors()
    if not is_listed:
        count = count_noun(len(report.unseen_places), "input")
        print(f"{count} could not be looked at from here; --long lists them")
    ids = list(dict.fromkeys(step.group for step in recipe.steps))
    print(f"nothing wrong was found in {count_noun(len(ids), 'step')}: {join_some(ids, 8)}")
    return 0


def _read_recipe(options: argparse.Namespace, plugins: Plugins) -> Recipe:
    from emberge.recipes import read_named_recipe

    return read_named_recipe(
        options.recipe, plugins, options.overrides, allow_plugins=options.allow_plugins
    )


def require_check(report: CheckReport, *, quiet: bool) -> None:
    """Raise the errors that a check found or, if there are none, print its warnings."""
    report.raise_errors()
    if not quiet:
        _show_unseen(report)
        _show_warnings(report.of("warning"))


def _show_notes(report: CheckReport) -> None:
    """Print what each step shows of its plan and data, equal notes of several steps once."""
    steps_by_note: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
    for note in report.notes:
        key = note.title, note.lines
        steps_by_note[key] = (*steps_by_note.get(key, ()), note.step)
    for (title, lines), (first, *other_steps) in steps_by_note.items():
        others_text = f" and {count_noun(len(other_steps), 'more step')}" if other_steps else ""
        print(f"{first}{others_text}: {title}")
        print("".join(f"  {make_printable(line)}\n" for line in lines), end="")


def _show_unseen(report: CheckReport) -> None:
    """Print each model or dataset that could not be checked, each only once."""
    for message, places in report.unseen_places.items():
        others_text = (
            f" and {count_noun(len(places) - 1, 'other place')}" if len(places) > 1 else ""
        )
        where = f"{places[0]}{others_text}: " if places[0] else ""
        print(f"not seen: {make_printable(f'{where}{message}')}", file=sys.stderr)


def _show_warnings(problems: Iterable[Problem]) -> None:
    for problem in problems:
        print(f"warning: {make_printable(problem)}", file=sys.stderr)


def show_recipes(options: argparse.Namespace, _: object) -> int:
    """List the shipped recipes, or print one."""
    from emberge.recipes import list_shipped_recipes

    shipped = list_shipped_recipes()
    if options.name is None:
        width = max((len(name) for name in shipped), default=0)
        for title, recipes in itertools.groupby(shipped.values(), lambda recipe: recipe.group):
            print(f"{title}:")
            for recipe in recipes:
                summary = shorten(recipe.description.partition("\n\n")[0], 120)
                print(f"  {recipe.name:<{width}}  {summary}")
    elif options.name in shipped:
        print(shipped[options.name].path.read_text(encoding="utf-8").rstrip("\n"))
    else:
        hint = suggest(options.name, shipped)
        raise RecipeError(f"no recipe '{options.name}' comes with emberge{hint}")
    return 0


# ── results ─────────────────────────────────────────────────────────────────────────────────────


def show_status(options: argparse.Namespace, _: object) -> int:
    """Show the state of each step in an OUT."""
    from emberge.recipes import read_status

    print("\n".join(map(make_printable, read_status(options.out).lines)))
    return 0


def clean(options: argparse.Namespace, _: object) -> int:
    """Show the leftovers of runs in an OUT, and remove them if the user agrees."""
    from emberge.results import find_leftovers, remove_leftovers

    leftovers = find_leftovers(options.out)
    if not leftovers:
        print("there is nothing to remove")
        return 0
    for leftover in leftovers:
        name = make_printable(os.path.relpath(leftover.path, options.out.resolve()))
        print(f"{format_size(leftover.size):>8}  {leftover.description:<10}  {name}")
    print(f"{format_size(sum(leftover.size for leftover in leftovers)):>8}  in all")
    question = f"remove this from {make_printable(options.out)}"
    if not options.yes and not ask_user(question, "nothing was removed"):
        print("nothing was removed")
        return 0
    removed = remove_leftovers(options.out, [leftover.path for leftover in leftovers])
    print(f"removed: {count_noun(len(removed), 'folder')}")
    return 0


def verify(options: argparse.Namespace, _: object) -> int:
    """Check a result against its provenance."""
    from emberge.results import verify_result

    print("\n".join(map(make_printable, verify_result(options.folder))))
    print("nothing differs from what the step wrote")
    return 0


# ── components ──────────────────────────────────────────────────────────────────────────────────


def list_all(options: argparse.Namespace, plugins: Plugins) -> int:
    """List components."""
    from emberge.options import list_components

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    with pause_collections():  # most of the time goes into imports
        table = list_components(plugins, options.having, kind=options.kind, width=width)
    print(table, end="\n" if table else "")
    return 0


def show(options: argparse.Namespace, plugins: Plugins) -> int:
    """Describe a component."""
    from emberge.options import describe_component

    print(describe_component(plugins, options.component).rstrip("\n"))
    return 0


def print_schema(_: argparse.Namespace, plugins: Plugins) -> int:
    """Print the JSON Schema of recipes."""
    from emberge.recipes import build_recipe_schema

    print(json.dumps(build_recipe_schema(plugins), indent=2, ensure_ascii=False))
    return 0


def write_new_plugin(options: argparse.Namespace, _: object) -> int:
    """Write the repository of a new plugin."""
    from emberge.cli.new_plugin import write_plugin

    folder = write_plugin(options.name, options.out or Path(f"emberge-{options.name}"))
    print(f"written: {folder}; its README says how to go on")
    return 0
