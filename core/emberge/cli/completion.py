"""Completion in the shell by argcomplete: verbs, options, files, and the names of recipes and components.

The shell starts `emberge` with `_ARGCOMPLETE` set each time that the user asks, so nothing heavy is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emberge.cli.arguments import build_parser, verb_parsers
from emberge.errors import PluginError
from emberge.plugins import Plugins, load_plugins
from emberge.recipes import shipped_recipes

_FILES = ("FILE", "CONFIG", "MODEL", "RECIPE")
_FOLDERS = ("DIR", "OUT", "FOLDER")

_Completer = Callable[..., Iterable[str]]


def complete_words() -> None:
    """Print the completions of the word that the shell's variables describe, and end the process."""
    import argcomplete

    plugins = _load_plugins()
    parser = build_parser(plugins.verbs)
    completers = _list_name_completers(plugins)
    for verb, verb_parser in verb_parsers(parser).items():
        for action in verb_parser._actions:
            names = completers.get(f"{verb} {action.dest}") or completers.get(action.dest)
            action.completer = names or _choose_completer(action)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _load_plugins() -> Plugins:
    """Load the installed plugins; none if one is broken, as there is no place for its error here."""
    try:
        return load_plugins()
    except PluginError:
        return Plugins()


def _list_name_completers(plugins: Plugins) -> Mapping[str, _Completer]:
    """Map an option, some with their verb before them, to the completer of the names that it takes."""
    return {
        "recipe": _RecipeCompleter(),
        "recipes name": lambda **_: shipped_recipes(),
        "component": lambda **_: _list_component_names(plugins),
        "kind": lambda **_: sorted({component.kind for component in plugins.components}),
        "strategy": lambda **_: plugins.of("merge strategy"),
        "launcher": lambda **_: plugins.of("launcher"),
    }


def _list_component_names(plugins: Plugins) -> list[str]:
    names = {component.name for component in plugins.components}
    return sorted(names | {component.full_name for component in plugins.components})


class _RecipeCompleter:
    """The completer of recipes: names of shipped ones, folders and YAML files."""

    def __call__(self, prefix: str, **_: Any) -> list[str]:
        from argcomplete.completers import FilesCompleter

        files = FilesCompleter(allowednames=("yaml", "yml"))(prefix)
        return [*shipped_recipes(), *files]


def _choose_completer(action: argparse.Action) -> _Completer | None:
    """Return the completer by what an option's value is: a file, a folder, or a word that nobody knows."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    if action.choices is not None or action.nargs == 0:
        return None
    if action.metavar in _FILES:
        return FilesCompleter()
    return DirectoriesCompleter() if action.metavar in _FOLDERS else _offer_nothing


def _offer_nothing(**_: Any) -> tuple[str, ...]:
    """Return no words, for a value that can only be typed."""
    return ()
