"""Verbs of the command line as data: their help, their options, and the place of the function to call."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from emberge.contracts import Count, explain_unsound_number, find_limits
from emberge.errors import PluginError, RecipeError


@dataclass(frozen=True, slots=True)
class VerbOption:
    """An option of a verb (`--out DIR`, or `--yes` without a value), or a word that follows the verb."""

    name: str
    """`--out`; the name of a word has no dashes. The parsed options have it as `options.out`."""
    help: str
    value: str | None = None
    """The value as the help shows it; None for an option without a value, which is True if it is there."""
    read: Callable[[str], Any] = str
    """The function from a value's text to the value, such as `Path`."""
    default: Any = None
    required: bool = False
    repeated: bool = False
    """True if the option may be given several times; its values are a list."""
    count: str | None = None
    """Of words: `?` for at most one, `*` for any number; None for exactly one."""
    stored_as: str | None = None
    """The name in the parsed options, if it is not the option's own."""

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser, or to a group of a parser's options."""
        if self.value is None:
            parser.add_argument(self.name, action="store_true", help=self.help)
            return
        shown: dict[str, Any] = {"metavar": self.value, "help": self.help}
        if not self.name.startswith("-"):
            parser.add_argument(self.name, type=self.read, nargs=self.count, **shown)
            return
        parser.add_argument(
            self.name,
            type=self.read,
            action="append" if self.repeated else "store",
            default=[] if self.repeated else self.default,
            required=self.required,
            dest=self.stored_as,
            **shown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: its help, its options, and the place of the one call that does its work.

    `run`, written as "module:function", is imported when the verb is used. It gets the parsed options and the
    loaded plugins, prints its outcome, and returns the exit code: 0 if the work is done, 3 if a requirement
    is not met. For an error it raises an `EmbergeError`, which has an exit code.
    """

    summary: str
    """One line for `emberge --help`, in lower case and without a full stop."""
    group: str = ""
    """Heading in `emberge --help`: start, look, publish, maintain or another; "" is listed by `--long`."""
    examples: str
    """Lines that a user can type."""
    options: Sequence[VerbOption] = ()
    run: str
    """Place of the function `(options, plugins) -> int`."""
    machine: bool = False
    """True adds --devices, --workers, --memory and --quiet, which `find_machine` reads."""
    machine_options: Sequence[VerbOption] = ()
    """Further options of the machine; the help shows them after those four."""
    resumes: bool = False
    """True if the same command goes on after a stop; a stopped command then says so."""
    loads_plugins: bool = True
    """False for a verb of emberge that uses no plugin."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's options to its parser."""
        for option in self.options:
            option.add_to(parser)
        if self.machine:
            title = "the machine (decides the speed, and the result only where noted)"
            group = parser.add_argument_group(title)
            for option in (*MACHINE_OPTIONS, *self.machine_options):
                option.add_to(group)

    def call(self, options: argparse.Namespace, plugins: Any) -> int:
        """Import the verb's function, run it, and return its exit code.

        Raises:
            PluginError: if the function cannot be imported.
        """
        module, _, name = self.run.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            raise PluginError(f"{self.run} cannot be imported: {error!r}") from error
        return int(function(options, plugins))


def build_number_reader(number_type: Any) -> Callable[[str], Any]:
    """Return the `read` of an option for numbers of a type such as `Count`.

    It refuses the same numbers as a recipe's option of this type: numbers that are not finite, and numbers
    outside the type's limits.
    """
    limits = find_limits(number_type)
    number = get_args(number_type)[0] if limits else number_type
    words = "a whole number" if number is int else "a number"
    words = f"{words} {limits.words()}".strip() if limits else words

    def read(text: str) -> Any:
        try:
            value = number(text)
        except ValueError:
            value = None
        is_sound = value is not None and not explain_unsound_number(value)
        if not is_sound or (limits is not None and not limits.has(value)):
            raise argparse.ArgumentTypeError(f"needs {words}, not {text!r}")
        return value

    return read


def prepare_output_path(text: str) -> Path:
    """Return the path of a file that a verb will write, and create its folder: the `read` of such an option.

    The path is refused before any work if it is a folder, or if its folder cannot be created or written into.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise argparse.ArgumentTypeError(
            f"{path}: its folder cannot be made ({reason}); name another"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path.parent} cannot be written to; name another folder")
    return path


MACHINE_OPTIONS = (
    VerbOption("--devices", "cpu, cuda, or cuda:0,cuda:1", "NAMES"),
    VerbOption("--workers", "default: all cores", "N", build_number_reader(Count)),
    VerbOption(
        "--memory",
        "limit of each merge, such as 512MB or 8GiB; a training takes what it needs",
        "SIZE",
    ),
    VerbOption("--quiet", "print errors and results only"),
)
"""The options of a verb with `machine`."""


def ask_user(question: str, refusal: str) -> bool:
    """Return whether the user answers yes on the terminal.

    Raises:
        RecipeError: if there is no terminal to ask at; begins with `refusal`, such as "nothing was removed".
    """
    if not sys.stdin.isatty():
        raise RecipeError(f"{refusal}: there is no terminal to ask at; --yes does not ask")
    try:
        return input(f"{question}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
