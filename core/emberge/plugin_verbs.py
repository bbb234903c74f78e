"""Verbs of the command line that plugins add: help, options, and the place of the function to call."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from emberge.contracts import is_sound_number, limits_of
from emberge.errors import PluginError

_VERB_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FUNCTION_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: its help, its options, and the place of the one call that does its work.

    `add_options` is called with the verb's parser. Give the option for a file that the verb writes the type
    `output_file`: the file is then refused before the call if it cannot be written. `run`, written as
    "module:function", is imported when the verb is used. It gets the parsed options and the loaded plugins,
    prints its outcome, and returns the exit code: 0 if the work is done, 3 if a requirement is not met. For
    an error it raises an `EmbergeError`, which has an exit code.
    """

    summary: str
    """One line for `emberge --help`, in lower case and without a full stop."""
    examples: str
    """Lines that a user can type."""
    add_options: Callable[[argparse.ArgumentParser], None]
    run: str
    """Place of the function `(options, plugins) -> int`."""
    machine: bool = False
    """True adds --devices, --workers, --memory and --quiet, which `find_machine` reads."""
    resumes: bool = False
    """True if the same command goes on after a stop; a stopped command then says so."""
    loads_plugins: bool = True
    """False for a verb of emberge that uses no plugin."""

    def require_sound(self, name: str, plugin: str) -> None:
        """Refuse the verb if its name or the place of its function is malformed.

        Raises:
            PluginError: if either is malformed; the message names the plugin and the verb.
        """
        label = f"verb '{name}' of plugin '{plugin}'"
        if not _VERB_NAME.fullmatch(name):
            raise PluginError(f"{label}: a name is small letters and digits, with - between words")
        if not _FUNCTION_PLACE.fullmatch(self.run):
            raise PluginError(f"{label}: its place is written 'module:function', not '{self.run}'")

    def call(self, options: argparse.Namespace, plugins: Any) -> int:
        """Import the verb's function, run it, and return its exit code.

        Raises:
            PluginError: if the function cannot be imported.
        """
        module, _, name = self.run.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise PluginError(f"{self.run} cannot be imported: {error!r}") from error
        return int(function(options, plugins))


def number_option(kind: Any) -> Callable[[str], Any]:
    """Return the `type` of a verb's option for numbers of this kind: `type=number_option(Count)`.

    The verb's option refuses the same numbers as a recipe's option of this type: numbers that are not finite,
    and numbers outside the type's limits.
    """
    limits, number = limits_of(kind), get_args(kind)[0] if limits_of(kind) else kind
    words = "a whole number" if number is int else "a number"
    words = f"{words} {limits.words()}".strip() if limits else words

    def read(text: str) -> Any:
        try:
            value = number(text)
        except ValueError:
            value = None
        if not is_sound_number(value) or (limits is not None and not limits.has(value)):
            raise argparse.ArgumentTypeError(f"needs {words}, not {text!r}")
        return value

    return read


def output_file(text: str) -> Path:
    """Return the path of a file that a verb will write: the `type` of its option, which it checks.

    The file's folder is created. The path is refused before any work if it is a folder, or if its folder
    cannot be created or written into.
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
