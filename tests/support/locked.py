"""A lock that another process holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def other_process_holding(out: Path) -> Iterator[int]:
    """A process that holds the lock of `out`."""
    code = (
        "import sys, time; from pathlib import Path; from emberge.files import FileLock\n"
        "with FileLock(Path(sys.argv[1])).lock():\n print('held', flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", code, str(out / ".lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process.pid
        finally:
            process.kill()
