"""The words of the command line: options, help and examples of each verb, and errors for misspelt words."""

from __future__ import annotations

import argparse
import copy
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from emberge.contracts import Count
from emberge.errors import EmbergeError, PluginError, RecipeError, suggest
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

# Maps a verb to its summary and its examples.
VERBS = {
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
    ),
    "check": (
        "report everything that is wrong with a recipe, and what it needs, without loading weights",
        "emberge check recipe.yaml\nemberge check boom/demo --offline\nemberge check recipe.yaml --long",
    ),
    "status": (
        "show what is done in an OUT and what is left, also while it is being run",
        "emberge status out",
    ),
    "clean": (
        "remove old results and work that runs left in an OUT, after showing it and asking",
        "emberge clean out\nemberge clean out --yes",
    ),
    "merge": (
        "merge models into one folder, or as a mergekit YAML asks",
        "emberge merge ./a ./b --strategy linear --out merged\n"
        "emberge merge ./a ./b --strategy slerp --set t=0.3 --out merged\n"
        "emberge merge ./a ./b --set missing=average_present --out merged\n"
        "emberge merge me/legal me/faq --base me/base --strategy ties --set density=0.5 --out merged\n"
        "emberge merge ./a ./b ./c --strategy linear --weight 0.5,0.3,0.2 --out merged\n"
        "emberge merge mergekit.yml --out merged",
    ),
    "diff": (
        "compare two models' weights layer by layer: cosine, distance, changes, signs",
        "emberge diff ./a ./b\n"
        "emberge diff ./a ./b --base me/base --json diff.json --page diff.html",
    ),
    "convert": (
        "print a mergekit YAML as a recipe; save it beside the YAML, as folders are relative to it",
        "emberge convert mergekit.yml > recipe.yaml",
    ),
    "list": (
        "list every component that the installed plugins add, or those that mention a word",
        'emberge list\nemberge list slerp\nemberge list --kind "merge strategy" --long\n'
        "emberge list --json",
    ),
    "show": (
        "show what a component does, its options, and how a recipe uses it",
        "emberge show ties\nemberge show train:train",
    ),
    "recipes": (
        "list the recipes that come with emberge, or print one",
        "emberge recipes\nemberge recipes boom/demo > mine.yaml",
    ),
    "schema": (
        "print the JSON Schema of recipes, with the options of every installed plugin",
        "emberge schema > recipe.schema.json",
    ),
    "new-plugin": (
        "write the repository of a new plugin: a strategy, a loss, a step and their tests",
        "emberge new-plugin acme --out ~/src/emberge-acme",
    ),
    "verify": (
        "check a result against its provenance: every file and its weights' headers",
        "emberge verify merged",
    ),
    "doctor": (
        "show what this machine has and which extras are missing: GPUs, memory, caches, token, libraries",
        "emberge doctor\nEMBERGE_BLOCK=ray emberge doctor",
    ),
    "safetensors": (
        "convert a model's pickled weights to safetensors, without running what is in the pickle",
        "emberge safetensors ./old_model",
    ),
}

# Verbs whose work goes on when the same command is given again after a stop.
RESUMING_VERBS = frozenset({"run", "merge"})


class _Parser(argparse.ArgumentParser):
    """The argparse parser, whose errors are one line and suggest the nearest verb or option."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.color = False  # Python 3.14 on: True writes escapes, which are shown as text
        self._is_intermixing = False
        self.more_help: Callable[[], str] = str

    def format_help(self) -> str:
        """Return the help, followed by what only plugins know."""
        return super().format_help() + self.more_help()

    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} (see `{self.prog} --help`)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a verb's options and other words in any order; refuse a misspelt option by its name first."""
        if (
            self._subparsers is not None or self._is_intermixing
        ):  # a verb follows, or argparse calls itself
            return super().parse_known_args(args, namespace)
        for word in itertools.takewhile(lambda w: w != "--", args or ()):
            self.require_known_option(word)
        parsed, rest = super().parse_known_args(args, copy.copy(namespace))
        if rest:  # words after an option, which only the other way of parsing takes
            parsed, rest = self._parse_in_any_order(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        self.require_different_outputs(parsed)
        return parsed, rest

    def _parse_in_any_order(self, args: Any, namespace: Any) -> Any:
        self._is_intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False

    def require_different_outputs(self, options: argparse.Namespace) -> None:
        """Refuse two output options that name the same file."""
        option_by_path: dict[Path, str] = {}
        for action in self._actions:
            path = getattr(options, action.dest, None) if action.type is output_file else None
            if (
                path is not None
                and (other := option_by_path.setdefault(path.resolve(), action.dest)) != action.dest
            ):
                self.error(f"--{other} and --{action.dest} are one file, {path}; name two")

    def require_known_option(self, word: str) -> None:
        """Refuse `--misspelt`, and suggest the option that may have been meant."""
        name = word.partition("=")[0]
        options = [o for action in self._actions for o in action.option_strings]
        if name.startswith("--") and name not in options:
            self.error(f"there is no option '{name}'{suggest(name, options)}")


def requires_plugins(words: Sequence[str]) -> bool:
    """Return whether plugins must be loaded: for a verb that emberge lacks, or for help on all verbs."""
    return "--version" not in words and next(_find_positional(words), "") not in VERBS


def list_plugin_files(words: Sequence[str]) -> list[Path]:
    """Return the plugin files that the command line gives by --plugin; they may add verbs."""
    pairs = itertools.pairwise(words)
    plugin_files = [after for word, after in pairs if word == "--plugin"]
    plugin_files += [
        word.removeprefix("--plugin=") for word in words if word.startswith("--plugin=")
    ]
    return [Path(name) for name in plugin_files]


def parse(words: Sequence[str], added: Mapping[str, Verb]) -> argparse.Namespace:
    """Parse the options of the verb at the beginning of `words`; the result's `verb` is None without one.

    `added` are the verbs that plugins add. The result's `written` lists the files that the verb will write.

    Raises:
        RecipeError: if a verb or option does not exist, or a value is missing.
        PluginError: if a plugin's verb has the name of an emberge verb.
    """
    for name in added:
        if name in VERBS:
            raise PluginError(f"a plugin names its verb '{name}', which is emberge's own")
    parser = build_parser(added)
    _require_known_verb(words, parser, [*VERBS, *added])
    options = parser.parse_args(words)
    if options.verb is None:
        parser.print_help()
    else:
        options.written = list(
            _list_written_files(options, verb_parsers(parser)[options.verb]._actions)
        )
    return options


def _list_written_files(options: argparse.Namespace, actions: Sequence[Any]) -> Iterator[Path]:
    """Yield the files that a verb will write.

    Raises:
        RecipeError: if the verb will also read one of them.
    """
    path_by_action = {
        a: p for a in actions if isinstance(p := getattr(options, a.dest, None), Path)
    }
    outputs = {a: p for a, p in path_by_action.items() if _is_output(a)}
    for action, path in outputs.items():
        for other, other_path in path_by_action.items():
            if other not in outputs and os.path.realpath(other_path) == os.path.realpath(path):
                option_name = (other.option_strings or [other.metavar])[0]
                raise RecipeError(
                    f"{action.option_strings[0]} {path}: {option_name} names the same file; choose another"
                )
        if path.parent.is_dir():
            yield path


def _is_output(action: Any) -> bool:
    return action.type is output_file or (action.dest, action.metavar) == ("out", "FILE")


def verb_parsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each verb's options, by the verb."""
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return verbs.choices


def build_parser(added: Mapping[str, Verb]) -> _Parser:
    """Build the parser of all verbs; `added` are those of plugins."""
    parser = _Parser("emberge", description=_DESCRIPTION, epilog=_EXAMPLES, **_PARSER_OPTIONS)
    parser.add_argument("--version", action="version", version=f"emberge {_read_version()}")
    _add_common(parser, default=None)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, (summary, examples) in VERBS.items():
        _ADD_OPTIONS[name](_add_verb(verbs, name, summary, examples))
    for name, verb in added.items():
        verb_parser = _add_verb(verbs, name, verb.summary, verb.examples)
        verb.add_options(verb_parser)
        if verb.machine:
            _add_machine(verb_parser)
    return parser


def _add_verb(verbs: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines())
    description = f"{summary[0].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=summary, description=description, epilog=epilog, **_PARSER_OPTIONS
    )
    _add_common(parser, default=argparse.SUPPRESS)
    return parser


_PARSER_OPTIONS: dict[str, Any] = {
    "formatter_class": argparse.RawDescriptionHelpFormatter,
    "allow_abbrev": False,
}


def _add_common(parser: argparse.ArgumentParser, default: Any) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--plugin",
        action="append",
        type=Path,
        metavar="FILE",
        default=default,
        help="load a plugin from a bare file too; may be given several times",
    )
    group.add_argument(
        "--debug",
        action="store_true",
        default=default or False,
        help="show the traceback of an error",
    )


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
    _add_side_by_side(_add_machine(parser))


def _add_side_by_side(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--launcher", metavar="NAME", help="run steps side by side: local, ray")
    group.add_argument(
        "--ranks", type=number_option(Count), metavar="N", help="train by N processes, one a GPU"
    )
    group.add_argument(
        "--shard", action="store_true", help="ranks split weights and optimizer (FSDP2)"
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_recipe(parser)
    parser.add_argument("--offline", action="store_true", help="use no network")
    parser.add_argument(
        "--long",
        action="store_true",
        help="also the plan and first rows of each step, and all that could not be looked at",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="see what a run left here, too")


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of a run")


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of a run")
    parser.add_argument("--yes", action="store_true", help="do not ask")


# How the command line gives the options of the step `merge` that have a word of their own.
_MERGE_WORDS = {
    "models": "MODEL …, --set models=…",
    "strategy": "--strategy",
    "base": "--base",
    "weights": "--weight, --set weights=size",
    "out_dtype": "--dtype",
    "template": "--template",
}


def _list_merge_options() -> str:
    """Return how each option of the step `merge` is given, with its values; nothing without the step."""
    from emberge.plugins import load_plugins
    from emberge.recipes import list_step_options

    try:
        options = list_step_options(load_plugins(), "merge")
    except EmbergeError:
        return ""  # its plugin is blocked, or one cannot be loaded: `emberge doctor` says which
    ways = {
        f"{_MERGE_WORDS.get(name, f'--set {name}=…')}": values for name, values in options.items()
    }
    lines = (f"  {way:<29} {values}" for way, values in ways.items())
    heading = "every option of the step, which `emberge show merge` explains; values are YAML:"
    return "\n".join(("", heading, *lines, ""))


def _add_merge(parser: argparse.ArgumentParser) -> None:
    assert isinstance(parser, _Parser)
    parser.more_help = _list_merge_options
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="./folder, owner/name@revision or pkg:module; or one mergekit YAML",
    )
    parser.add_argument("--strategy", metavar="NAME", help="default: that of the step `merge`")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the merged model")
    parser.add_argument("--base", metavar="MODEL", help="the models' common ancestor")
    parser.add_argument(
        "--template", metavar="MODEL", help="gives all but weights; default: the first model"
    )
    parser.add_argument(
        "--weight", action="append", default=[], metavar="W", help="one a model: 0.5,0.3,0.2"
    )
    _add_overrides(
        parser, "option=value", "of the strategy or of the step; may be given several times"
    )
    parser.add_argument("--dtype", metavar="NAME", help="of the merged weights")
    _add_machine(parser)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        parser.add_argument(
            name, metavar="MODEL", help="./folder, owner/name@revision or pkg:module"
        )
    parser.add_argument("--base", metavar="MODEL", help="compare their changes from it, too")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="write all numbers to this file"
    )
    parser.add_argument(
        "--page", type=output_file, metavar="FILE", help="write charts as one HTML file"
    )
    _add_machine(parser)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the other tool's file")


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "having", nargs="*", metavar="WORD", help="only what has it in name or documentation"
    )
    parser.add_argument("--long", action="store_true", help="with options")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--kind", metavar="KIND", help='only one kind, such as "loss"')


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("component", metavar="COMPONENT", help="its name, or plugin:name")


def _add_recipes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one")


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """Add no options to a verb that has only the common ones."""


def _add_new_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="letters, digits and underscores")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: ./emberge-NAME")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a step's result or a merged model"
    )


def _add_safetensors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the model's folder")


_ADD_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "run": _add_run,
    "check": _add_check,
    "status": _add_status,
    "clean": _add_clean,
    "merge": _add_merge,
    "diff": _add_diff,
    "convert": _add_convert,
    "list": _add_list,
    "show": _add_show,
    "recipes": _add_recipes,
    "schema": _add_nothing,
    "new-plugin": _add_new_plugin,
    "verify": _add_verify,
    "doctor": _add_nothing,
    "safetensors": _add_safetensors,
}


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


def _add_machine(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("the machine (decides the speed, never the result)")
    group.add_argument("--devices", metavar="NAMES", help="cpu, cuda, or cuda:0,cuda:1")
    group.add_argument(
        "--workers", type=number_option(Count), metavar="N", help="default: all cores"
    )
    group.add_argument("--memory", metavar="SIZE", help="stay below it where possible: 512MB, 8GiB")
    group.add_argument("--quiet", action="store_true", help="print errors and results only")
    return group


def _require_known_verb(words: Sequence[str], parser: _Parser, verbs: Sequence[str]) -> None:
    """Refuse an unknown verb and suggest a known verb; argparse would list all verbs."""
    for option in _take_options_before_verb(words):
        parser.require_known_option(option)
    word = next(_find_positional(words), None)
    if word is not None and word not in verbs:
        hint = suggest(word, verbs) or f"; verbs: {', '.join(verbs)}"
        raise RecipeError(f"there is no verb '{word}'{hint}")


def _take_options_before_verb(words: Sequence[str]) -> Iterator[str]:
    """Yield the options before the verb, without the values of --plugin."""
    return itertools.takewhile(lambda word: word.startswith("-"), _skip_plugin_files(words))


def _find_positional(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that are neither options nor values of --plugin; the first is the verb."""
    return (word for word in _skip_plugin_files(words) if not word.startswith("-"))


def _skip_plugin_files(words: Sequence[str]) -> Iterator[str]:
    preceding_words = ["", *words]
    return (word for word, last in zip(words, preceding_words, strict=False) if last != "--plugin")


def _read_version() -> str:
    from emberge import __version__

    return __version__
