"""Tests run against a copy of the project, each time in a fork of one process that has the libraries.

A fork saves the seconds that imports take; it knows the libraries and nothing of the project, so that what
it tests is what the copy has. Processes that a test starts find the copy by PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOTS = ("core", "plugins")
# Git ignores the compiled kernels, and without them their tests are skipped.
LIBRARY = Path("core/emberge/numerics/native/row_kernels.so")
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
PATIENCE = 30.0  # seconds beyond five times what a test, and all together, took unchanged


@dataclass(frozen=True)
class Reach:
    """Which tests run which lines of a room's files, and how long each takes."""

    lines: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]

    def tests(self, path: Path, lines: tuple[int, int]) -> list[str]:
        """Return the tests that run any of the lines.

        What only an import runs, such as a default, a test may read without running a line of the file:
        then these are all tests of the room.
        """
        of_file = self.lines.get(str(path), {})
        span = range(lines[0], lines[1] + 1)
        found = {test for line in span for test in of_file.get(line, ())}
        if not found and any(line in of_file for line in span):
            found = set(self.seconds)
        return self._cheap_files_first(found)

    def _cheap_files_first(self, tests: set[str]) -> list[str]:
        cost: dict[str, float] = {}
        for test in tests:
            cost[_file(test)] = cost.get(_file(test), 0.0) + self.seconds[test]
        return sorted(tests, key=lambda test: (cost[_file(test)], test))


def _file(test: str) -> str:
    return test.partition("::")[0]


class Trial:
    """A copy of the project in which files are changed and tests run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.copy = Path(tempfile.mkdtemp(prefix="emberge-mutants-"))
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
        )
        for name in listed.stdout.decode().split("\0"):
            if name and (root / name).is_file():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.copy / name)
        if (root / LIBRARY).is_file():
            shutil.copy2(root / LIBRARY, self.copy / LIBRARY)

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.rmtree(self._scratch(), ignore_errors=True)

    def _scratch(self) -> Path:
        """Return the place of temporary files: beside the copy, as messages shorten paths inside it."""
        return self.copy.with_name(f"{self.copy.name}-tmp")

    def reach(self, sources: Sequence[Path], tests: Sequence[Path]) -> Reach:
        """Run the tests unchanged and return which lines of the sources each of them runs.

        Libraries that they needed are imported here, for the forks to come.

        Raises:
            RuntimeError: where a test fails as it is.
        """
        out = self.copy / ".reach.json"
        code, log = self._fork(lambda: _measure(sources, tests, out), timeout=3600)
        if code != 0:
            raise RuntimeError(f"tests fail without any mutant:\n{log[-4000:]}")
        found = json.loads(out.read_text())
        for library in found["libraries"]:
            with contextlib.suppress(Exception):  # some can only be imported by another
                importlib.import_module(library)
        lines = {
            path: {int(line): ids for line, ids in of.items()}
            for path, of in found["lines"].items()
        }
        return Reach(lines, found["seconds"])

    def finds(self, path: Path, code: str, reach: Reach, tests: Sequence[str]) -> bool:
        """Return whether any of the tests fails, or takes too long, with `code` in the place of the file."""
        place = self.copy / path
        plain = place.read_bytes()
        expected = sum(reach.seconds[test] for test in tests)
        with self._changed(place, code.encode(), plain):
            found, _ = self._fork(lambda: _select(tests, reach), timeout=PATIENCE + 5 * expected)
        return found != 0

    @contextlib.contextmanager
    def _changed(self, place: Path, code: bytes, plain: bytes) -> Iterator[None]:
        _write_source(place, code)
        try:
            yield
        finally:
            _write_source(place, plain)

    def _fork(self, work: Callable[[], int], *, timeout: float) -> tuple[int, str]:
        """Run `work` in a fork with the copy in the place of the project; return its code and output."""
        log = self.copy / ".log"
        scratch = self._scratch()
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
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


def _select(tests: Sequence[str], reach: Reach) -> int:
    """Run these tests, file by file, up to the first that fails; return 0 when all pass."""
    sys.dont_write_bytecode = True
    # That a mutant leaves none of the tests to run is no find: nothing would have failed.
    passed = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    chosen = _Chosen(tests, reach)
    for file in dict.fromkeys(map(_file, tests)):
        code = pytest.main(["-x", *ARGUMENTS, file], [chosen])
        if code not in passed:
            return int(code)
    return 0


class _Chosen:
    """A pytest plugin that keeps the chosen tests, and ends the process where one takes too long."""

    def __init__(self, tests: Sequence[str], reach: Reach) -> None:
        self.tests = set(tests)
        # The first test of a file that runs also makes the fixtures that others made before.
        self.slowest: dict[str, float] = {}
        for test, seconds in reach.seconds.items():
            self.slowest[_file(test)] = max(seconds, self.slowest.get(_file(test), 0.0))
        signal.signal(signal.SIGALRM, lambda *_: os._exit(124))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.tests]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE + 5 * self.slowest[_file(item.nodeid)])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _measure(sources: Sequence[Path], tests: Sequence[Path], out: Path) -> int:
    """Run the tests under coverage, and write for every line the tests that ran it."""
    import coverage

    here = os.getcwd()
    cov = coverage.Coverage(
        data_file=None, config_file=False, include=[f"{here}/{path}" for path in sources]
    )
    seen = _Contexts(cov, sources)
    cov.start()
    code = pytest.main([*ARGUMENTS, *map(str, tests)], [seen])
    cov.stop()
    data = cov.get_data()
    lines = {
        str(path): _ordered(data.contexts_by_lineno(f"{here}/{path}"), list(seen.seconds))
        for path in sources
    }
    libraries = [name for name, module in sys.modules.items() if _is_library(module, Path(here))]
    found = {"lines": lines, "seconds": seen.seconds, "libraries": libraries}
    out.write_text(json.dumps(found))
    return int(code)


def _is_library(module: Any, project: Path) -> bool:
    """Return whether a module is the same for every mutant; pytest imports its plugins itself."""
    place = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    if place is None or "pytest" in name or name == "__main__":
        return False
    return not Path(place).is_relative_to(project)


def _ordered(
    contexts: Mapping[int, Sequence[str]], tests: Sequence[str]
) -> dict[int, Sequence[str]]:
    """Put in the place of a shared fixture all tests of the file that asked for it."""
    found = {}
    for line, names in contexts.items():
        files = {_file(name) for name in names if name.endswith("::")}
        found[line] = [t for t in tests if t in names or _file(t) in files]
    return found


class _Contexts:
    """A pytest plugin that notes under which test lines run, and how long each test takes.

    What a function of the sources keeps between calls is forgotten before each test, as a line that ran for
    one test and not for the next would count as none of the next.
    """

    def __init__(self, cov: Any, sources: Sequence[Path]) -> None:
        self.cov = cov
        parts = [path.with_suffix("").parts[1:] for path in sources]
        self.modules = [".".join(one[:-1] if one[-1] == "__init__" else one) for one in parts]
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        for name in self.modules:
            for value in vars(sys.modules.get(name, object)).values():
                if callable(forget := getattr(value, "cache_clear", None)):
                    forget()
        self.started = time.monotonic()
        self.current = nodeid
        self.cov.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.monotonic() - self.started
        self.cov.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """Count what a shared fixture runs for all tests of the file that first asked for it."""
        if fixturedef.scope == "function":
            return (yield)
        self.cov.switch_context(f"{_file(self.current)}::")
        try:
            return (yield)
        finally:
            self.cov.switch_context(self.current)
