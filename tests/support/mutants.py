"""Mutation testing: small faults are planted one at a time, and the tests of their room must find them.

    make mutants MUTANTS="losses journal"   from the files whose path has one of these words
    make mutants SAMPLE=20 SEED=7           20 faults, drawn by another seed

The changes are those of mutmut (https://mutmut.readthedocs.io), whose own command changes nothing outside of
functions. Two are added: a call whose result is not used is left out, and so is a `raise`. Docstrings, types,
imports and decorators stay as they are, and so do messages (f-strings, texts with a space in them, what a
`raise` is given) and the arguments `encoding` and `strict`.

A survivor is not always a gap in the tests: some changes mean nothing. Whoever reads the list decides.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_string

from tests.support.places import ROOT
from tests.support.sources import CORE, PLUGINS, python_files

GUARDS = frozenset({"encoding", "strict"})
# Git ignores the compiled kernels, and without them their tests are skipped.
LIBRARY = "core/emberge/numerics/native/row_kernels.so"
SECONDS = 1200  # that the tests of a room may take; a fault that takes longer is found


@dataclass(frozen=True)
class Mutant:
    """A source file with one change."""

    path: Path
    before: str
    after: str
    code: str

    def __str__(self) -> str:
        return f"{self.path}\n      - {self.before}\n      + {self.after}"


def mutants(path: Path, source: str, order: random.Random | None = None) -> Iterator[Mutant]:
    """Yield the mutants of a file in the order of its lines, or in a drawn `order`."""
    module, finder, known = cst.parse_module(source), _Finder(), {ast.dump(ast.parse(source))}
    module.visit(finder)
    if order is not None:
        order.shuffle(finder.changes)
    for node, other in finder.changes:
        changed = module.deep_replace(node, other)
        assert isinstance(changed, cst.Module)
        try:
            tree = ast.dump(ast.parse(changed.code))
        except SyntaxError:
            continue
        if tree not in known:
            known.add(tree)
            yield Mutant(path, *_difference(source, changed.code), changed.code)


def draw_mutants(root: Path, paths: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants drawn by `seed`, of one file after another; more begin with all of fewer."""
    shuffled = random.Random(seed).sample(list(paths), len(paths))
    waiting = deque(
        mutants(path, (root / path).read_text("utf-8"), random.Random(f"{seed} {path}"))
        for path in shuffled
    )
    found: list[Mutant] = []
    while waiting and len(found) < count:
        file = waiting.popleft()
        for mutant in itertools.islice(file, 1):
            found.append(mutant)
            waiting.append(file)
    return found


class _Finder(cst.CSTVisitor):
    """Visitor that collects pairs of a node and what may be in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if m.matches(node, m.Raise() | m.Expr(m.Call())):
            self.changes.append((node, cst.Pass()))
        if _is_noise(node):
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and not (operator is operator_arg_removal and _is_loud(node)):
                others = list(operator(node))
                # mutmut's other changes of a text differ from the first in nothing.
                others = others[:1] if operator is operator_string else others
                self.changes += ((node, other) for other in others)
        return True


def _is_noise(node: cst.CSTNode) -> bool:
    """Return whether nothing in the node is to be changed."""
    noise = m.Annotation() | m.Decorator() | m.Import() | m.ImportFrom() | m.Raise() | m.Assert()
    noise |= m.If(test=m.Name("TYPE_CHECKING")) | m.Expr(m.SimpleString() | m.ConcatenatedString())
    noise |= m.Assign(targets=[m.AssignTarget(m.Name("__all__"))])
    if isinstance(node, cst.Arg) and node.keyword is not None:
        return node.keyword.value in GUARDS
    return m.matches(node, noise) or _is_alias(node) or _is_message(node)


def _is_loud(call: cst.CSTNode) -> bool:
    """Return whether an argument of a call is to stay as it is."""
    assert isinstance(call, cst.Call)
    return any(_is_noise(arg) or _is_message(arg.value) for arg in call.args)


def _is_alias(node: cst.CSTNode) -> bool:
    """Return whether a node gives a name to a type."""
    target = node.targets[0].target if isinstance(node, cst.Assign) else None
    name = target.value if isinstance(target, cst.Name) else ""
    return name[:1].isupper() and not name.isupper()


def _is_message(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.ConcatenatedString):
        return _is_message(node.left) or _is_message(node.right)
    return isinstance(node, cst.FormattedString) or (
        isinstance(node, cst.SimpleString) and " " in node.value
    )


def _difference(source: str, code: str) -> tuple[str, str]:
    """Return the lines that differ, each side as one line of text."""
    diff = list(difflib.unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm=""))[2:]
    before, after = (" ".join(one[1:].strip() for one in diff if one[0] == sign) for sign in "-+")
    return before, after


# ── trials ──────────────────────────────────────────────────────────────────────────────────────


def room_tests(root: Path, source: Path) -> Path:
    """Return the tests of a source's room: `tests/core/files` of `core/emberge/files/atomic.py`."""
    top, package, *below = source.with_suffix("").parts
    if top == "plugins":
        return Path("tests/plugins", package.removeprefix("emberge_"))
    of_file = Path("tests/core", *below[:-1], f"test_{below[-1]}.py")
    return next(one for one in (of_file, *of_file.parents) if (root / one).exists())


def copy_project(folder: Path) -> None:
    """Copy all that git knows or would add into a folder, and the kernels."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in [*filter(None, listed.split("\0")), LIBRARY]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def first_failure(copy: Path, tests: Path) -> str:
    """Return the first test that fails in the copy, or the end of the process; "" if all pass."""
    roots = os.pathsep.join(str(copy / name) for name in ("core", "plugins"))
    environment = {**os.environ, "PYTHONPATH": roots, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider", str(tests)]
    try:
        done = subprocess.run(
            words, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "takes too long"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if done.returncode in (0, 5) else (failed or [f"exit code {done.returncode}"])[0]


def main(words: Sequence[str]) -> None:
    """Plant mutants, run the tests of their rooms, and print those that no test finds."""
    parser = argparse.ArgumentParser("mutants", description="Mutation testing.")
    parser.add_argument("what", nargs="*", help="parts of paths; all files without one")
    parser.add_argument("--sample", type=int, default=50, help="how many mutants are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args(words)
    sources = [path.relative_to(ROOT) for path in python_files(CORE, PLUGINS)]
    wanted = [p for p in sources if not options.what or any(w in str(p) for w in options.what)]
    drawn = draw_mutants(ROOT, wanted, options.sample, options.seed)
    survivors, sound = [], dict[Path, str]()
    with tempfile.TemporaryDirectory(prefix="emberge-mutants-") as folder:
        copy_project(copy := Path(folder))
        for mutant in drawn:
            tests = room_tests(copy, mutant.path)
            if tests not in sound:
                sound[tests] = first_failure(copy, tests)
            if sound[tests]:
                raise SystemExit(f"{tests} fails without a fault: {sound[tests]}")
            (copy / mutant.path).write_text(mutant.code, encoding="utf-8")
            found = first_failure(copy, tests)
            shutil.copy2(ROOT / mutant.path, copy / mutant.path)
            print(f"{mutant}\n      {found or 'NOT FOUND'}", flush=True)
            survivors += [] if found else [mutant]
    print(f"\nnot found ({len(survivors)}):", *survivors, sep="\n  ")
    print(f"\n{len(drawn) - len(survivors)} of {len(drawn)} were found")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
