"""The words of the command line: options, help and examples of each verb, and errors for misspelt words."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from emberge import __version__
from emberge.contracts import Count
from emberge.errors import PluginError, RecipeError, suggest
from emberge.plugin_verbs import Verb, VerbOption, build_number_reader, read_output_path

_DESCRIPTION = (
    "The merge engine for embedding models: train members, merge, evaluate, from one recipe."
)
_EXAMPLES = """\
examples:
  emberge merge ./a ./b --strategy linear --out merged     merge two models
  emberge recipes                                          what comes with emberge
  emberge check recipe.yaml                                what is wrong with it, in seconds
  emberge run recipe.yaml --out out                        run it; again after a kill: it goes on

exit codes: 0 done, 1 the work failed, 2 the recipe or input is wrong, 3 a requirement was not met"""


class _Parser(argparse.ArgumentParser):
    """The argparse parser, whose errors are one line and suggest the nearest option."""

    def __init__(self, prog: str, **options: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, formatter_class=layout, allow_abbrev=False, **options)
        self.color = False  # Python 3.14 on: help is the same text everywhere

    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} (see `{self.prog} --help`)")

    def parse_in_any_order(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse options and other words in any order."""
        self.require_known_options(words)
        parsed, rest = self.parse_known_args(words)
        # Only `parse_intermixed_args` takes words after an option, but it does not know `--`.
        return self.parse_intermixed_args(words) if rest else parsed

    def require_known_options(self, words: Sequence[str]) -> None:
        """Refuse the first `--misspelt`, and suggest the option that may have been meant."""
        options = [*re.findall(r"--[a-z][a-z-]*", self.format_usage()), "--help"]
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in options:
                self.error(f"there is no option '{name}'{suggest(name, options)}")


def find_verb(words: Sequence[str]) -> int | None:
    """Return the index of the verb, the first word that is neither an option nor a --plugin's file."""
    pairs = enumerate(zip(["", *words], words, strict=False))
    verbs = (at for at, (last, word) in pairs if last != "--plugin" and not word.startswith("-"))
    return next(verbs, None)


def requires_plugins(words: Sequence[str]) -> bool:
    """Return whether plugins must be loaded: not for `--version` and for verbs that use none."""
    at = find_verb(words)
    verb = VERBS.get(words[at]) if at is not None else None
    return "--version" not in words and (verb is None or verb.loads_plugins)


def list_plugin_files(words: Sequence[str]) -> list[Path]:
    """Return the plugin files that the command line gives by --plugin; they may add verbs."""
    parser = _Parser("emberge", add_help=False)
    _add_common(parser)
    files: list[Path] = parser.parse_known_args(words)[0].plugin
    return files


def parse(
    words: Sequence[str], added: Mapping[str, Verb], blocked_hint: str = ""
) -> argparse.Namespace:
    """Parse the options of the verb at the beginning of `words`; the result's `verb` is None without one.

    `added` are the verbs that plugins add, `blocked_hint` the end of a message about a missing verb.

    Raises:
        RecipeError: if a verb or option does not exist, or a value is missing.
        PluginError: if a plugin's verb has the name of an emberge verb.
    """
    for name in added:
        if name in VERBS:
            raise PluginError(f"a plugin names its verb '{name}', which is emberge's own")
    verbs, at = {**VERBS, **added}, find_verb(words)
    if at is None:
        overview = _build_overview(verbs)
        options = overview.parse_in_any_order(words)
        overview.print_help()
        options.verb = None
        return options
    name, others = words[at], [*words[:at], *words[at + 1 :]]
    if name not in verbs:
        _build_overview(verbs).require_known_options(words[:at])
        hint = suggest(name, verbs) or f"; verbs: {', '.join(verbs)}"
        raise RecipeError(f"there is no verb '{name}'{hint}{blocked_hint}")
    options = _build_parser(name, verbs[name]).parse_in_any_order(others)
    options.verb, options.words = name, list(words)
    return options


def _build_overview(verbs: Mapping[str, Verb]) -> _Parser:
    """Build the parser of a command without a verb, whose help lists all verbs."""
    usage = "emberge [--help] [--version] [--plugin FILE] [--debug] VERB ..."
    parser = _Parser("emberge", usage=usage, description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"emberge {__version__}")
    _add_common(parser)
    group = parser.add_argument_group("verbs")
    for name, verb in verbs.items():
        group.add_argument(name, nargs="?", help=verb.summary)
    return parser


def _build_parser(name: str, verb: Verb) -> _Parser:
    """Build the parser of a verb's options."""
    parser = _Parser(
        f"emberge {name}",
        description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in verb.examples.splitlines()),
    )
    _add_common(parser)
    verb.add_options(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("everywhere")
    for option in _EVERYWHERE:
        option.add_to(group)


# ── emberge's own verbs ─────────────────────────────────────────────────────────────────────────

_EVERYWHERE = (
    VerbOption(
        "--plugin",
        "load a plugin from a bare file too; may be given several times",
        "FILE",
        Path,
        repeated=True,
    ),
    VerbOption("--debug", "show the traceback of an error"),
)
_RECIPE = (
    VerbOption("recipe", "a file, or the name of a shipped recipe", "RECIPE"),
    VerbOption(
        "--allow-plugins",
        "load the plugin files that the recipe names under `plugins`, which are code",
    ),
    VerbOption(
        "--set",
        "override an option; may be given several times",
        "ID.KIND.OPTION=VALUE",
        repeated=True,
        stored_as="overrides",
    ),
)
_OUT = VerbOption("out", "the folder of a run", "OUT", Path)

VERBS: dict[str, Verb] = {
    "run": Verb(
        summary="run a recipe; steps that are done are skipped, an interrupted run goes on",
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
                "--summary", "write outcome and tables as Markdown here", "FILE", read_output_path
            ),
            VerbOption("--allow-upload", "let steps of the recipe upload, as `publish` does"),
        ),
        machine=True,
        machine_options=(
            VerbOption("--launcher", "run steps side by side: local, ray", "NAME"),
            VerbOption(
                "--ranks", "train by N processes, one a GPU", "N", build_number_reader(Count)
            ),
            VerbOption("--shard", "ranks split weights and optimizer (FSDP2)"),
        ),
        run="emberge.cli.verbs:run",
        resumes=True,
    ),
    "check": Verb(
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
        summary="show what is done in an OUT and what is left, also while it is being run",
        examples="emberge status out",
        options=(_OUT,),
        run="emberge.cli.verbs:show_status",
        loads_plugins=False,
    ),
    "clean": Verb(
        summary="remove old results and work that runs left in an OUT, after showing it and asking",
        examples="emberge clean out\nemberge clean out --yes",
        options=(_OUT, VerbOption("--yes", "do not ask")),
        run="emberge.cli.verbs:clean",
        loads_plugins=False,
    ),
    "list": Verb(
        summary="list every component that the installed plugins add, or those that mention a word",
        examples='emberge list\nemberge list slerp\nemberge list --kind "merge strategy"',
        options=(
            VerbOption("having", "only what has it in name or documentation", "WORD", count="*"),
            VerbOption("--kind", 'only one kind, such as "loss"', "KIND"),
        ),
        run="emberge.cli.verbs:list_all",
    ),
    "show": Verb(
        summary="show what a component does, its options, and how a recipe uses it",
        examples="emberge show ties\nemberge show train:train",
        options=(VerbOption("component", "its name, or plugin:name", "COMPONENT"),),
        run="emberge.cli.verbs:show",
    ),
    "recipes": Verb(
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
        summary="check a result against its provenance: every file that its step left",
        examples="emberge verify merged",
        options=(VerbOption("folder", "a step's result or a merged model", "DIR", Path),),
        run="emberge.cli.verbs:verify",
        loads_plugins=False,
    ),
}
