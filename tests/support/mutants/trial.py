"""Tests run against a copy of the project, each time in a fork of one process that has the libraries.

A fork saves the seconds that imports take; it knows the libraries and nothing of the project, so that what
it tests is what the copy has. Processes that a test starts find the copy by PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOTS = ("core", "plugins")
# Git ignores the compiled kernels, and without them their tests are skipped.
LIBRARY = Path("core/emberge/numerics/native/row_kernels.so")
LIBRARIES = ("torch", "transformers", "sentence_transformers", "mteb", "peft", "scipy.stats")
ARGUMENTS = (
    "-q",
    "--no-header",
    "--tb=line",
    "-p",
    "no:cacheprovider",
    "-p",
    "_hypothesis_pytestplugin",
    "--hypothesis-seed=0",
)
MEMORY = 12 << 30  # bytes that a mutant may take
FILE = 2 << 30  # bytes that a mutant may write into one file


class Trial:
    """A copy of the project in which files are changed and tests run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.copy = Path(tempfile.mkdtemp(prefix="emberge-mutants-"))
        self._sound: set[str] = set()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
        )
        names = [name for name in listed.stdout.decode().split("\0") if name]
        for name in [*names, str(LIBRARY)]:
            if (root / name).is_file():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.copy / name)
        for library in LIBRARIES:
            importlib.import_module(library)

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.copy, ignore_errors=True)

    def find(self, path: Path, code: str, files: Sequence[str], timeout: float) -> str:
        """Return the test that fails with `code` in the place of the file, or an empty text.

        What ends in another way, or takes longer than `timeout` seconds, is found too, and named so.
        A test that fails unchanged finds nothing; it is left out.
        """
        unsound: set[str] = set()
        while True:
            failed = self._first_failure(path, code, files, unsound, timeout)
            if not failed or failed in self._sound or "::" not in failed:
                return failed
            plain = (self.root / path).read_text("utf-8")
            if not self._first_failure(path, plain, [failed], unsound, timeout):
                self._sound.add(failed)
                return failed
            unsound.add(failed)

    def _first_failure(
        self, path: Path, code: str, files: Sequence[str], without: set[str], timeout: float
    ) -> str:
        place, named = self.copy / path, self.copy / ".failed"
        named.unlink(missing_ok=True)
        plain = place.read_bytes()
        _write_source(place, code.encode())
        try:
            ended, _ = self.fork(lambda: _run(files, _Watched(named, without)), timeout=timeout)
        finally:
            _write_source(place, plain)
        if not ended:
            return ""
        return named.read_text() if named.exists() else f"exit code {ended}"

    def fork(self, work: Callable[[], int], *, timeout: float) -> tuple[int, str]:
        """Run `work` in a fork with the copy in the place of the project; return its code and output."""
        log = self.copy / ".log"
        # Beside the copy, as messages shorten paths inside it.
        scratch = Path(tempfile.mkdtemp(prefix=f"{self.copy.name}-"))
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _enter(self.root, self.copy, log, scratch)
            code = 70
            try:
                code = work()
            finally:
                os._exit(code)
        code = _awaited(child, timeout)
        shutil.rmtree(scratch, ignore_errors=True)
        return code, log.read_text(errors="replace")


def _write_source(place: Path, content: bytes) -> None:
    """Write a module; bytecode of a content with the same size and second must not be taken for its own."""
    place.write_bytes(content)
    for cached in place.parent.glob(f"__pycache__/{place.stem}.*"):
        cached.unlink()


def _awaited(child: int, timeout: float) -> int:
    """Return a process's exit code, 124 after it was killed for its time; end what it left running."""
    end, status = time.monotonic() + timeout, None
    while status is None and time.monotonic() < end:
        done, found = os.waitpid(child, os.WNOHANG)
        status = found if done else None
        if status is None:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return 124
    return os.waitstatus_to_exitcode(status)


def _enter(root: Path, copy: Path, log: Path, scratch: Path) -> None:
    """Make the copy the project, for this process and those that it starts."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    os.chdir(copy)
    places = [str(copy / name) for name in ROOTS]
    mine = {str(root), "", *(str(root / name) for name in ROOTS)}
    sys.path[:] = [*places, str(copy), *(place for place in sys.path if place not in mine)]
    for name in [n for n in sys.modules if n == "tests" or n.startswith("tests.")]:
        del sys.modules[name]
    os.environ.update(
        PYTHONPATH=os.pathsep.join(places),
        PYTHONDONTWRITEBYTECODE="1",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        TMPDIR=str(scratch),
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
    )
    tempfile.tempdir = None


def _run(files: Sequence[str], watched: _Watched) -> int:
    """Run the tests up to the first that fails; return 0 when all pass."""
    sys.dont_write_bytecode = True
    code = pytest.main(["-x", *ARGUMENTS, *files], [watched])
    # That a mutant leaves none of the tests to run is no find: nothing would have failed.
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else int(code)


class _Watched:
    """A pytest plugin that writes down which test failed, and leaves some out."""

    def __init__(self, named: Path, without: set[str]) -> None:
        self.named = named
        self.without = without

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.without]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.named.write_text(report.nodeid)
