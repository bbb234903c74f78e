"""Entry point of the command line: a verb does the work; errors and signals that stop it are shown here.

Large libraries are imported only when a verb needs them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from emberge.cli.arguments import list_plugin_files, parse, requires_plugins
from emberge.cli.verbs import VERBS
from emberge.errors import EmbergeError
from emberge.interpreter import REPEAT_SECONDS, leave_process, refuse_exits, set_torch_defaults
from emberge.wording import make_printable

if TYPE_CHECKING:
    from emberge.plugins import Plugins


_LONGEST_LINE = 4000  # characters of an error, which may quote a file


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""


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
    # Output shows `?` for characters that the locale cannot encode.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
    try:
        with interrupted_by_signals():
            return _run_verb(words)
    except EmbergeError as error:
        return _show_user_error(error, debug="--debug" in words)
    except KeyboardInterrupt as error:
        print("; ".join(("stopped", *getattr(error, "__notes__", ()))), file=sys.stderr)
        return 143 if isinstance(error, Terminated) else 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has ended, as `head` does
        return 1
    except Exception as error:
        # A mistake in emberge, a plugin or a library, which may be of any class, gets one line.
        return _show_unforeseen_error(error, debug="--debug" in words)


def _run_verb(words: list[str]) -> int:
    """Load the plugins that the verb may need, run the verb, and return its exit code."""
    plugins: Plugins | None = None
    if requires_plugins(words):
        with refuse_exits("a plugin that is being loaded"):
            module = importlib.import_module("emberge.plugins")
            plugins = module.load_plugins(list_plugin_files(words))
    added, hint = (plugins.verbs, plugins.blocked_hint) if plugins else ({}, "")
    options = parse(words, added, hint)
    if options.verb is None:
        return 0
    verb = {**VERBS, **added}[options.verb]
    try:
        with refuse_exits("a plugin"):
            return verb.call(options, plugins)
    except KeyboardInterrupt as error:
        if verb.resumes:
            recipes = importlib.import_module("emberge.recipes")
            # A note says that the last steps could not be saved.
            start = "what was saved" if hasattr(error, "__notes__") else "here"
            error.add_note(recipes.describe_continuation(getattr(options, "out", None), start))
        raise


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Run the `with` block so that SIGINT raises KeyboardInterrupt in it, and SIGTERM raises Terminated.

    If SIGINT was ignored before, it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # emberge runs inside another program's process
        return
    last = -REPEAT_SECONDS

    def interrupt(number: int, _: object) -> None:
        nonlocal last
        if time.monotonic() - last >= REPEAT_SECONDS:
            last = time.monotonic()
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    previous_handlers = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


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
