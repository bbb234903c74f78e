"""The words of the command line: options, help and examples of each verb, and errors for misspelt words."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from emberge import __version__
from emberge.contracts import Count
from emberge.errors import PluginError, RecipeError, suggest
from emberge.plugin_verbs import Verb, number_option, output_file

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
        self.color = False  # Python 3.14 on: True writes escapes, which are shown as text

    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} (see `{self.prog} --help`)")

    def parse_in_any_order(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse options and other words in any order."""
        self.require_known_options(words)
        parsed, rest = self.parse_known_args(words)
        # Words after an option are taken by argparse's other way of parsing alone, which takes no `--`.
        return self.parse_intermixed_args(words) if rest else parsed

    def require_known_options(self, words: Sequence[str]) -> None:
        """Refuse the first `--misspelt`, and suggest the option that may have been meant."""
        options = [*re.findall(r"--[a-z][a-z-]*", self.format_usage()), "--help"]
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in options:
                self.error(f"there is no option '{name}'{suggest(name, options)}")


def requires_plugins(words: Sequence[str]) -> bool:
    """Return whether plugins must be loaded: for a verb that emberge lacks, or for help on all verbs."""
    at = _find_verb(words)
    return "--version" not in words and (at is None or words[at] not in VERBS)


def list_plugin_files(words: Sequence[str]) -> list[Path]:
    """Return the plugin files that the command line gives by --plugin; they may add verbs."""
    parser = _Parser("emberge", add_help=False)
    _add_common(parser)
    return parser.parse_known_args(words)[0].plugin or []


def _find_verb(words: Sequence[str]) -> int | None:
    """Return the index of the verb, the first word that is neither an option nor a --plugin's file."""
    pairs = enumerate(zip(["", *words], words, strict=False))
    verbs = (at for at, (last, word) in pairs if last != "--plugin" and not word.startswith("-"))
    return next(verbs, None)


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
    at = _find_verb(words)
    if at is None:
        parser = _build_overview(added)
        options = parser.parse_in_any_order(words)
        parser.print_help()
        options.verb = None
        return options
    name, others = words[at], [*words[:at], *words[at + 1 :]]
    if name not in (*VERBS, *added):
        _build_overview(added).require_known_options(words[:at])
        hint = suggest(name, [*VERBS, *added]) or f"; verbs: {', '.join([*VERBS, *added])}"
        raise RecipeError(f"there is no verb '{name}'{hint}{blocked_hint}")
    options = _build_parser(name, added).parse_in_any_order(others)
    options.verb = name
    return options


def _build_overview(added: Mapping[str, Verb]) -> _Parser:
    """Build the parser of a command without a verb, whose help lists all verbs."""
    usage = "emberge [--help] [--version] [--plugin FILE] [--debug] VERB ..."
    parser = _Parser("emberge", usage=usage, description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"emberge {__version__}")
    _add_common(parser)
    verbs = parser.add_argument_group("verbs")
    summaries = {name: summary for name, (summary, _, _) in VERBS.items()}
    for name, summary in (summaries | {name: verb.summary for name, verb in added.items()}).items():
        verbs.add_argument(name, nargs="?", help=summary)
    return parser


def _build_parser(name: str, added: Mapping[str, Verb]) -> _Parser:
    """Build the parser of a verb's options."""
    verb = added.get(name)
    summary, examples, add_options = (
        VERBS[name] if verb is None else (verb.summary, verb.examples, verb.add_options)
    )
    parser = _Parser(
        f"emberge {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
    )
    _add_common(parser)
    add_options(parser)
    if verb is not None and verb.machine:
        _add_machine(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--plugin",
        action="append",
        type=Path,
        metavar="FILE",
        help="load a plugin from a bare file too; may be given several times",
    )
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_recipe(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    parser.add_argument(
        "--summary",
        type=output_file,
        metavar="FILE",
        help="write outcome and tables as Markdown here",
    )
    parser.add_argument(
        "--allow-upload",
        action="store_true",
        help="let steps of the recipe upload, as `publish` does",
    )
    _add_machine(parser, side_by_side=True)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_recipe(parser)
    parser.add_argument("--offline", action="store_true", help="use no network")
    parser.add_argument(
        "--long",
        action="store_true",
        help="also the plan and first rows of each step, and all that could not be looked at",
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of a run")


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of a run")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "having", nargs="*", metavar="WORD", help="only what has it in name or documentation"
    )
    parser.add_argument("--kind", metavar="KIND", help='only one kind, such as "loss"')


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("component", metavar="COMPONENT", help="its name, or plugin:name")


def _add_recipes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one")


def _add_nothing(_: argparse.ArgumentParser) -> None:
    """Add no options to a verb that has only the common ones."""


def _add_new_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="letters, digits and underscores")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: ./emberge-NAME")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a step's result or a merged model"
    )


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a file, or the name of a shipped recipe")
    parser.add_argument(
        "--allow-plugins",
        action="store_true",
        help="load the plugin files that the recipe names under `plugins`, which are code",
    )
    _add_overrides(parser, "ID.KIND.OPTION=VALUE", "override an option; may be given several times")


def _add_overrides(parser: argparse.ArgumentParser, shape: str, text: str) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar=shape, dest="overrides", help=text
    )


def _add_machine(parser: argparse.ArgumentParser, *, side_by_side: bool = False) -> None:
    group = parser.add_argument_group("the machine (decides the speed, never the result)")
    group.add_argument("--devices", metavar="NAMES", help="cpu, cuda, or cuda:0,cuda:1")
    group.add_argument(
        "--workers", type=number_option(Count), metavar="N", help="default: all cores"
    )
    group.add_argument("--memory", metavar="SIZE", help="stay below it where possible: 512MB, 8GiB")
    group.add_argument("--quiet", action="store_true", help="print errors and results only")
    if side_by_side:
        group.add_argument("--launcher", metavar="NAME", help="run steps side by side: local, ray")
        group.add_argument(
            "--ranks",
            type=number_option(Count),
            metavar="N",
            help="train by N processes, one a GPU",
        )
        group.add_argument(
            "--shard", action="store_true", help="ranks split weights and optimizer (FSDP2)"
        )


# Maps a verb to its summary, its examples, and the function that adds its options.
VERBS: dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], None]]] = {
    "run": (
        "run a recipe; steps that are done are skipped, an interrupted run goes on",
        "emberge run boom/demo --out out/demo\n"
        "emberge run recipe.yaml --out out --set members.train.learning_rate=2e-5\n"
        "emberge run recipe.yaml --out out --devices cuda:0,cuda:1 --memory 8GB\n"
        "emberge run recipe.yaml --out out --summary summary.md\n"
        "emberge run recipe.yaml --out out --launcher local\n"
        "emberge run release.yaml --out out --allow-upload\n"
        "emberge run recipe.yaml --out out --ranks 8\n"
        "torchrun --nnodes 2 --nproc-per-node 8 … -m emberge run recipe.yaml --out out\n"
        "accelerate launch --multi_gpu --num_processes 8 -m emberge run recipe.yaml --out out",
        _add_run,
    ),
    "check": (
        "report everything that is wrong with a recipe, and what it needs, without loading weights",
        "emberge check recipe.yaml\nemberge check boom/demo --offline\nemberge check recipe.yaml --long",
        _add_check,
    ),
    "status": (
        "show what is done in an OUT and what is left, also while it is being run",
        "emberge status out",
        _add_status,
    ),
    "clean": (
        "remove old results and work that runs left in an OUT, after showing it and asking",
        "emberge clean out\nemberge clean out --yes",
        _add_clean,
    ),
    "list": (
        "list every component that the installed plugins add, or those that mention a word",
        'emberge list\nemberge list slerp\nemberge list --kind "merge strategy"',
        _add_list,
    ),
    "show": (
        "show what a component does, its options, and how a recipe uses it",
        "emberge show ties\nemberge show train:train",
        _add_show,
    ),
    "recipes": (
        "list the recipes that come with emberge, or print one",
        "emberge recipes\nemberge recipes boom/demo > mine.yaml",
        _add_recipes,
    ),
    "schema": (
        "print the JSON Schema of recipes, with the options of every installed plugin",
        "emberge schema > recipe.schema.json",
        _add_nothing,
    ),
    "new-plugin": (
        "write the repository of a new plugin: a strategy, a loss, a step and their tests",
        "emberge new-plugin acme --out ~/src/emberge-acme",
        _add_new_plugin,
    ),
    "verify": (
        "check a result against its provenance: every file and its weights' headers",
        "emberge verify merged",
        _add_verify,
    ),
}
