"""Which test files reach which lines of the sources, by a run of all quick tests under coverage."""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.mutants.plant import Mutant
from tests.support.mutants.trial import ARGUMENTS, Trial

MOST_SECONDS = 150.0  # of tests for one mutant: lines that everything reaches are found by few


@dataclass(frozen=True)
class Reach:
    """The test files that run each line of each source, and how many seconds each file takes."""

    lines: Mapping[str, Mapping[str, Sequence[str]]]
    seconds: Mapping[str, float]

    @classmethod
    def read(cls, place: Path) -> Reach:
        """Return what `measure_reach` wrote."""
        return cls(**json.loads(place.read_text()))

    def seconds_of(self, files: Sequence[str]) -> float:
        """Return how many seconds the test files take together."""
        return sum(self.seconds[file] for file in files)

    def files_of(self, mutant: Mutant) -> list[str]:
        """Return the test files that reach a mutant, its room's own and the cheapest first.

        What only an import runs, such as a default, is tried by all that run any line of the file.
        """
        of_file = self.lines.get(str(mutant.path), {})
        first, last = mutant.lines
        room = _tests_of(mutant.path)
        own = {file for file in self.seconds if file.startswith(room)}
        if _is_in_function(mutant.code, first, last):
            reached = {f for n in range(first, last + 1) for f in of_file.get(str(n), ())}
        else:
            reached = own.union(*of_file.values())
        cost = {f: self.seconds[f] * (0.3 if f in own else 1) for f in reached or own}
        chosen: list[str] = []
        for file in sorted(cost, key=cost.__getitem__):
            if not chosen or self.seconds_of([*chosen, file]) <= MOST_SECONDS:
                chosen.append(file)
        return chosen


def _tests_of(source: Path) -> str:
    """Return the folder of a source's own tests: `tests/core/files/` of `core/emberge/files/atomic.py`."""
    top, package, *below = source.parts
    if top == "plugins":
        return f"tests/plugins/{package.removeprefix('emberge_')}/"
    return "/".join(["tests/core", *below[:-1], ""])


def _is_in_function(code: str, first: int, last: int) -> bool:
    """Return whether the lines are of a function's body."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        isinstance(node, functions)
        and node.body[0].lineno <= first
        and last <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse(code))
    )


def test_files(root: Path) -> list[Path]:
    """Return the test files that mutants are tried by, relative to `root`: all but lints."""
    found = sorted(path.relative_to(root) for path in (root / "tests").rglob("test_*.py"))
    return [path for path in found if path.parts[1] not in ("house", "benchmarks", "gpu")]


def measure_reach(trial: Trial, place: Path) -> None:
    """Run all quick tests in the copy, and write what a `Reach` reads."""
    files = [str(path) for path in test_files(trial.copy)]
    code, log = trial.fork(lambda: _measure(files, place), timeout=4 * 3600)
    if not place.exists():
        raise RuntimeError(f"no reach was measured; exit code {code}:\n{log[-4000:]}")


def _measure(files: Sequence[str], place: Path) -> int:
    import coverage

    here = os.getcwd()
    cov = coverage.Coverage(
        data_file=None, config_file=False, include=[f"{here}/core/*", f"{here}/plugins/*"]
    )
    seen = _Contexts(cov)
    cov.start()
    code = pytest.main([*ARGUMENTS, *files], [seen])
    cov.stop()
    data = cov.get_data()
    lines = {
        os.path.relpath(source, here): {
            line: [name for name in names if name]
            for line, names in data.contexts_by_lineno(source).items()
        }
        for source in data.measured_files()
    }
    place.write_text(json.dumps({"lines": lines, "seconds": seen.seconds}))
    return int(code)


class _Contexts:
    """A pytest plugin that notes in which test file lines run, and how long each file takes.

    What a function of the sources keeps between calls is forgotten before each file, as a line that ran for
    one file and not for the next would count as none of the next.
    """

    def __init__(self, cov: Any) -> None:
        self.cov = cov
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        file = item.nodeid.partition("::")[0]
        if file not in self.seconds:
            self.cov.switch_context(file)
            _forget_kept_calls()
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[file] = self.seconds.get(file, 0.0) + time.monotonic() - begun


def _forget_kept_calls() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("emberge"):
            for value in list(vars(module).values()):
                if callable(forget := getattr(value, "cache_clear", None)):
                    forget()
