"""Verbs of the command line that plugins add: help, options, and the place of the call."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emberge.errors import PluginError

__all__ = ["Verb"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: its help, its options, and the place of the one call that does its work.

    `add_options` is called with the verb's parser. A file that the verb writes is named by `--out`, `--json`
    or `--page` with the metavar FILE: then it is refused before the call where its folder is missing, or
    another option names the same file. `run`, written as "module:function", is imported when the
    verb is used; it gets the parsed options and the loaded plugins, prints its outcome, and returns the exit
    code: 0 done, 3 a requirement not met. Errors are raised: an `EmbergeError` brings its own code.
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

    def require_sound(self, name: str, plugin: str) -> None:
        """Refuse a name or place that has another form.

        Raises:
            PluginError: naming the plugin and the verb.
        """
        label = f"verb '{name}' of plugin '{plugin}'"
        if not _NAME.fullmatch(name):
            raise PluginError(f"{label}: a name is small letters and digits, with - between words")
        if not _PLACE.fullmatch(self.run):
            raise PluginError(f"{label}: its place is written 'module:function', not '{self.run}'")

    def call(self, options: argparse.Namespace, plugins: Any) -> int:
        """Import the verb's function, run it, and return its exit code.

        Raises:
            PluginError: when the function cannot be imported.
        """
        module, _, name = self.run.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise PluginError(f"{self.run} cannot be imported: {error!r}") from error
        return int(function(options, plugins))
