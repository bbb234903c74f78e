"""Work that is killed in a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.ranked_fit", "tests.support.ranked_imports"])


def killed_when(dies: Callable[[], bool], work: Callable[..., object], *arguments: object) -> bool:
    """Kill a process that does some work as soon as `dies` is True; return whether it was killed."""
    process = _FORKS.Process(target=work, args=arguments)
    process.start()
    while process.is_alive() and not dies():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def run_command(recipe: Path, out: Path) -> list[str]:
    """Return the words of the command that runs a recipe on one thread."""
    return ["run", str(recipe), "--out", str(out), "--workers", "1", "--quiet"]
