"""The interpreter of this process: its command, packages, heap, garbage collection, signals and end."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from emberge.errors import PluginError


def build_python_command(*words: str) -> list[str]:
    """Return the command that runs this interpreter with these arguments, such as `-m emberge run`.

    `-P` keeps the current folder off the path: otherwise `python -m` and `python -c` would import a file that
    somebody left there, such as `json.py`, instead of the library's module. Child processes of the command
    also keep the folder off the path.
    """
    return [sys.executable, "-P", *words]


def locate_package(name: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if there is no such folder."""
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


# glibc, or another C library that may lack its functions; None on other systems.
_C_LIBRARY: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
# Numbers of mallopt's parameters, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_blocks() -> None:
    """Make glibc reuse freed memory, as new pages cost more time than most arithmetic on them."""
    mallopt = getattr(_C_LIBRARY, "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 128 << 20)


def return_freed_memory() -> None:
    """Return memory pages that are no longer used to the operating system.

    When blocks of many sizes, such as a model's activations, are freed, they leave holes between blocks that
    live longer. glibc reuses few of the holes, so a process can grow for hours although its work needs no
    more memory than at its start.
    """
    malloc_trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@contextmanager
def pause_collections(*, freeze: bool = False) -> Iterator[None]:
    """Pause the garbage collector in the block: its passes over modules take a sixth of an import.

    With `freeze`, the collector ignores all objects that exist at the end of the block from then on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        gc.enable()


REPEAT_SECONDS = 1.0
"""Seconds after a signal in which a second one counts as the same: groups and supervisors send it twice."""


class DelayedInterrupt:
    """A context that delays the first Ctrl-C or SIGTERM until the work in it can stop; the next acts at once.

    Signals without a handler in Python are not delayed, nor is any outside the main thread. The `notice` is
    written to standard error when a signal is delayed.
    """

    def __init__(self, notice: str = "") -> None:
        self._notice, self._since = notice, 0.0
        self._number: int | None = None
        self._handlers: dict[int, Any] = {}

    @property
    def is_pending(self) -> bool:
        """True if a signal is delayed now."""
        return self._number is not None

    def __enter__(self) -> DelayedInterrupt:
        """Delay signals from now on."""
        if threading.current_thread() is threading.main_thread():
            handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
            self._handlers = {n: handler for n, handler in handlers.items() if callable(handler)}
        for number in self._handlers:
            signal.signal(number, self._keep_signal)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Put the handlers back, and deliver a signal that is still delayed, with a note of an error."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if not self.is_pending:
            return
        try:
            self.raise_signal()
        except KeyboardInterrupt as stop:
            if isinstance(error, Exception):
                reason = getattr(error, "strerror", None) or error
                stop.add_note(f"the last steps could not be saved ({reason})")
            raise

    def _keep_signal(self, number: int, _: object) -> None:
        if not self.is_pending:
            self._number, self._since = number, time.monotonic()
            os.write(2, self._notice.encode())  # print could be what was interrupted
        elif time.monotonic() - self._since >= REPEAT_SECONDS:
            self.raise_signal()

    def raise_signal(self) -> NoReturn:
        """Raise what the delayed signal's handler raises; KeyboardInterrupt if it raises nothing."""
        number, self._number = self._number, None
        if number is not None:
            self._handlers[number](number, None)
        raise KeyboardInterrupt


def leave_process(code: int) -> NoReturn:
    """End the process with an exit code, as a normal exit does, but without destroying its objects.

    Destructors of torch and of all modules take more than a tenth of a second, and could wait for a thread
    that still imports a library. Threads that are no daemons are waited for, exit functions are called, and
    output is flushed; if it cannot be, a normal exit reports that.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError, AttributeError):
        sys.exit(code)
    os._exit(code)


@contextmanager
def refuse_exits(whose: str) -> Iterator[None]:
    """Turn a `sys.exit` in the block into a PluginError, as it could end a run as if that had succeeded.

    Raises:
        PluginError: if the block calls `sys.exit`; the message names `whose` code did so.
    """
    try:
        yield
    except SystemExit as error:
        raise PluginError(
            f"{whose} called sys.exit({error.code!r}), which would end the whole command; "
            "have it raise an error instead"
        ) from error


def set_torch_defaults() -> None:
    """Set environment variables that torch reads at its first import, unless the user has set them.

    A command and each call from Python sets them before anything imports torch.
    """
    # Waiting threads must not spin: with other work on the same cores, a spinning pool made
    # training ten times slower; without other work, the difference is not measurable.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # oneDNN caches a kernel for every shape of a batch. The default, a thousand kernels, needs a
    # gigabyte, and is not faster than a cache for the last few shapes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
