"""Entry point of the command line: words are parsed, a verb does the work, and errors are shown here.

Large libraries are imported only when a verb needs them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from emberge.cli.arguments import VERBS, list_plugin_files, parse, requires_plugins
from emberge.cli.signals import Terminated, interrupted_by_signals
from emberge.errors import EmbergeError
from emberge.interpreter import leave_process, refuse_exits, set_torch_defaults
from emberge.wording import make_printable

if TYPE_CHECKING:
    from emberge.plugin_verbs import Verb
    from emberge.plugins import Plugins


_LONGEST_LINE = 4000  # characters of an error, which may quote a file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without `arguments`, end the process with the code."""
    code = _run_words(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None:
        leave_process(code)
    return code


def _run_words(words: list[str]) -> int:
    set_torch_defaults()
    # The interpreter's last garbage collection would examine all of torch's objects for a quarter
    # of a second.
    atexit.register(gc.freeze)
    _accept_any_text()
    command = _Command(words)
    try:
        with interrupted_by_signals():
            return command.run()
    except EmbergeError as error:
        return _show_user_error(error, debug="--debug" in words)
    except Terminated:
        return command.show_interruption(143)
    except KeyboardInterrupt:
        return command.show_interruption(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has ended, as `head` does
        return 1
    except Exception as error:
        # A mistake in emberge, a plugin or a library, which may be of any class, gets one line.
        return _show_unforeseen_error(error, debug="--debug" in words)


def _accept_any_text() -> None:
    """Make standard output and error print `?` for characters that the locale cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


class _Command:
    """The words of a command, and its verb once that is known."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._verb: Verb | None = None

    def run(self) -> int:
        """Run the verb, and return the exit code."""
        plugins: Plugins | None = None
        if requires_plugins(self._words):
            with refuse_exits("a plugin that is being loaded"):
                module = importlib.import_module("emberge.plugins")
                plugins = module.load_plugins(list_plugin_files(self._words))
        added, hint = (plugins.verbs, plugins.blocked_hint) if plugins else ({}, "")
        options = parse(self._words, added, hint)
        if options.verb is None:
            return 0
        self._verb = {**VERBS, **added}[options.verb]
        with refuse_exits("a plugin"):
            return self._verb.call(options, plugins)

    def show_interruption(self, code: int) -> int:
        """Say that the command was stopped, and return the exit code."""
        resumes = self._verb is not None and self._verb.resumes
        hint = "; the same command goes on from here" if resumes else ""
        print(f"stopped{hint}", file=sys.stderr)
        return code


def _show_user_error(error: EmbergeError, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    step = _find_step_note(error)
    for line in str(error).splitlines():
        _print_error(f"{line} ({step})" if step else line)
    return error.exit_code


def _show_unforeseen_error(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    first_line = (str(error).splitlines() or [""])[0]
    name = " ".join(filter(None, (type(error).__name__, _find_step_note(error))))
    _print_error(f"{name}: {first_line} (--debug shows where)")
    return 1


def _print_error(line: str) -> None:
    """Print one line of an error to standard error, without characters that control terminals."""
    print(f"error: {make_printable(line[:_LONGEST_LINE])}", file=sys.stderr)


def _find_step_note(error: Exception) -> str:
    """Return the note that names the step of an error; "" without one."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if note.startswith("in step ")), "")
