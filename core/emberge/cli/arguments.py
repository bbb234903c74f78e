"""The words of the command line: options and help of each verb as argparse has them, and misspelt words."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from emberge import __version__
from emberge.cli.verbs import VERBS
from emberge.errors import PluginError, RecipeError, suggest
from emberge.plugin_verbs import Verb, VerbOption

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
_GROUPS = ("start", "look", "publish", "maintain")
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
        parsed, other_words = self.parse_known_args(words)
        # Only `parse_intermixed_args` takes words after an option, but it does not know `--`.
        return self.parse_intermixed_args(words) if other_words else parsed

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
    verbs = (
        index for index, (last, word) in pairs if last != "--plugin" and not word.startswith("-")
    )
    return next(verbs, None)


def requires_plugins(words: Sequence[str]) -> bool:
    """Return whether plugins must be loaded: not for `--version` and for verbs that use none."""
    verb_index = find_verb(words)
    verb = VERBS.get(words[verb_index]) if verb_index is not None else None
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
    verbs, verb_index = {**VERBS, **added}, find_verb(words)
    if verb_index is None:
        overview = _build_overview(verbs, is_long="--long" in words)
        options = overview.parse_in_any_order(words)
        overview.print_help()
        options.verb = None
        return options
    name = words[verb_index]
    other_words = [*words[:verb_index], *words[verb_index + 1 :]]
    if name not in verbs:
        _build_overview(verbs, is_long=True).require_known_options(words[:verb_index])
        hint = suggest(name, verbs) or f"; verbs: {', '.join(verbs)}"
        raise RecipeError(f"there is no verb '{name}'{hint}{blocked_hint}")
    options = _build_parser(name, verbs[name]).parse_in_any_order(other_words)
    options.verb, options.words = name, list(words)
    return options


def _build_overview(verbs: Mapping[str, Verb], *, is_long: bool) -> _Parser:
    """Build the parser of a command without a verb, whose help lists verbs by group, and all if `is_long`."""
    usage = "emberge [--help] [--long] [--version] [--plugin FILE] [--debug] VERB ..."
    rare = [name for name, verb in verbs.items() if not verb.group]
    more = "" if is_long else f"more verbs, which --long describes: {', '.join(rare)}\n\n"
    parser = _Parser(
        "emberge", usage=usage, description=_DESCRIPTION, epilog=more + _EXAMPLES, add_help=False
    )
    titles = dict.fromkeys([*_GROUPS, *(verb.group for verb in verbs.values() if verb.group)])
    for title in [*titles, *([""] if is_long else [])]:
        group = parser.add_argument_group(title or "more")
        for name, verb in verbs.items():
            if verb.group == title:
                group.add_argument(name, nargs="?", help=verb.summary)
    everywhere = _add_common(parser)
    everywhere.add_argument("--help", "-h", action="help", help="of a verb: its options; examples")
    everywhere.add_argument("--long", action="store_true", help="list all verbs")
    everywhere.add_argument("--version", action="version", version=f"emberge {__version__}")
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


def _add_common(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("everywhere")
    for option in _EVERYWHERE:
        option.add_to(group)
    return group
