"""Entry point of the command line: `arguments` parses words, `verbs` does the work, errors are shown here.

Large libraries are imported only when a verb needs them.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import io
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

from emberge.cli.arguments import list_plugin_files, parse, requires_plugins
from emberge.cli.ended_by_signal import Terminated, ended_by_signal
from emberge.errors import EmbergeError, exits_refused
from emberge.interpreter import leave_process, set_torch_defaults
from emberge.wording import printable, printable_lines

if TYPE_CHECKING:
    from emberge.plugins import Plugins


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without `arguments`, end the process with the code."""
    code = _run_words(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None:
        leave_process(code)
    return code


def _run_words(words: list[str]) -> int:
    command = _Command(words)
    set_torch_defaults()
    # The interpreter's last garbage collection would examine all of torch's objects for a quarter
    # of a second.
    atexit.register(gc.freeze)
    _accept_any_text()
    debug = "--debug" in words
    try:
        with (
            ended_by_signal(lambda number: _show_interruption(128 + number, command)),
            guard_output(),
        ):
            return _run_verb(command)
    except EmbergeError as error:
        return _show_user_error(error, debug)
    except Terminated:
        return _show_interruption(143, command)
    except KeyboardInterrupt:
        return _show_interruption(130, command)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has ended, as `head` does
        return 1
    except Exception as error:
        # A mistake in emberge, a plugin or a library gets one line; --debug shows the traceback.
        return _show_unforeseen_error(error, debug)


def _accept_any_text() -> None:
    """Make standard output and error print `?` for characters that the locale cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


@dataclass
class _Command:
    """The words of a command; `resumes` is True once its verb is known to go on after a stop."""

    words: list[str]
    resumes: bool = False


def _run_verb(command: _Command) -> int:
    words = command.words
    with exits_refused("a plugin that is being loaded"):
        plugins = _load_plugins(words)
    plugin_verbs = plugins.verbs if plugins is not None else {}
    options = parse(words, plugin_verbs, plugins.blocked_hint if plugins is not None else "")
    options.words = words
    if options.verb is None:
        return 0
    verb = plugin_verbs.get(options.verb)
    command.resumes = options.verb == "run" if verb is None else verb.resumes
    with exits_refused("a plugin"):
        if verb is not None:
            return verb.call(options, plugins)
        verbs = importlib.import_module("emberge.cli.verbs")
        run: Callable[[argparse.Namespace], int] = getattr(verbs, options.verb.replace("-", "_"))
        return run(options)


def _load_plugins(words: list[str]) -> Plugins | None:
    """Load and return the plugins, or None for an emberge verb, which loads them when needed."""
    if not requires_plugins(words):
        return None
    loaded: Plugins = importlib.import_module("emberge.plugins").load_plugins(
        list_plugin_files(words)
    )
    return loaded


def _show_user_error(error: EmbergeError, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    step = _find_step(error)
    for line in str(error).splitlines():
        _print_error("error", f"{line} ({step})" if step else line)
    return error.exit_code


def _find_step(error: Exception) -> str:
    """Return the note that names the step of an error; "" without one."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if note.startswith("in step ")), "")


def _show_interruption(code: int, command: _Command) -> int:
    continue_hint = "; the same command goes on from here" if command.resumes else ""
    print(f"stopped{continue_hint}", file=sys.stderr)
    return code


def _show_unforeseen_error(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    first_line = (str(error).splitlines() or [""])[0]
    name = " ".join(filter(None, (type(error).__name__, _find_step(error))))
    _print_error("error", f"{name}: {first_line} (--debug shows where)")
    return 1


# ── text for a terminal ─────────────────────────────────────────────────────────────────────────
#
# Names of files, columns and rows come from strangers, so characters that control terminals are
# printed as escapes. Verbs use `print`, so standard output is guarded while a verb runs. Errors are
# guarded one by one, as other libraries draw their progress bars on standard error.


_LONGEST_LINE = 4000  # characters of an error, which may quote a file


class _GuardedStream:
    """A text stream that writes control characters as escapes; `unguarded` is the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        """Write text, which may have several lines."""
        self.unguarded.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, which include their line ends."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextmanager
def guard_output() -> Iterator[None]:
    """Write control characters on standard output as escapes while the `with` block runs.

    A listener that draws with terminal escapes writes to `sys.stdout.unguarded`, and must escape its texts
    itself.
    """
    previous_stdout = sys.stdout
    sys.stdout = cast(TextIO, _GuardedStream(previous_stdout))
    try:
        yield
    finally:
        sys.stdout = previous_stdout


def _print_error(label: str, line: str) -> None:
    """Print one line to standard error after a label: `error: …`."""
    print(f"{label}: {printable(line[:_LONGEST_LINE])}", file=sys.stderr)
