"""The mutants of one source file.

The changes to a node are mutmut's: other operators, numbers, booleans and texts, arguments left out or
None, values None, branches never taken. Two are added: a call whose result is not used is left out, and so
is a `raise`. Without them a forgotten fsync or a missing check would never be planted.

Not changed, because no test could or should find it:
- docstrings, type hints, type aliases, imports, decorators, `__all__`, and what only type checkers see;
- messages: f-strings, texts with a space in them, and all that a `raise` is given;
- `encoding=` and `strict=`, which guard against other machines and against mistakes of the code itself;
- `out=` of a call whose result is used, and `fresh(...)`: a buffer saves memory and changes no number;
- `<` for `<=` at a named constant, a tolerance that no value is meant to meet;
- words that only name a stream of random numbers, as another stream is as good;
- `revision` and `nanoseconds`, which no result is computed from;
- `len` and `isinstance`, as in mutmut, and `cast`.
A value False is only changed to True, as None would be the same in a condition.
Of a text that is no message only one change is made, as mutmut's others differ from it in nothing.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import (
    mutation_operators,
    operator_arg_removal,
    operator_assignment,
    operator_string,
)

GUARDS = frozenset({"encoding", "strict"})
UNSEEN = frozenset({"__all__", "revision", "nanoseconds"})
STREAMS = frozenset({"stable_seed", "uniform"})
WHOLE_CALLS = frozenset({"len", "isinstance", "cast", "fresh"})

Lines = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """A source file with one change."""

    path: Path
    lines: Lines
    """First and last line of the statement that was changed."""
    before: str
    after: str
    code: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lines[0]}\n      - {self.before}\n      + {self.after}"


def mutants(path: Path, source: str) -> list[Mutant]:
    """Return the mutants of a file in the order of its lines."""
    file = _Mutable(path, source)
    found = {m.code: m for n in range(len(file.changes)) if (m := file.mutant(n)) is not None}
    return list(found.values())


def draw_mutants(root: Path, paths: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the files, each change as likely as any other, drawn by `seed`."""
    files = [_Mutable(path, (root / path).read_text("utf-8")) for path in paths]
    changes = [(file, number) for file in files for number in range(len(file.changes))]
    random.Random(seed).shuffle(changes)
    valid = (mutant for file, n in changes if (mutant := file.mutant(n)) is not None)
    return list(itertools.islice(valid, count))


class _Mutable:
    """A source file and the changes that may be made to it."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        wrapper = MetadataWrapper(cst.parse_module(source))
        self._module, finder = wrapper.module, _Finder()
        wrapper.visit(finder)
        self.changes = finder.changes

    def mutant(self, number: int) -> Mutant | None:
        """Return the file with one change made; None where that is no program, or the same one."""
        node, other, lines = self.changes[number]
        code = _replaced(self._module, node, other)
        try:
            compile(code, str(self.path), "exec")
        except SyntaxError:
            return None
        if ast.dump(ast.parse(code)) == ast.dump(ast.parse(self.source)):
            return None
        return Mutant(self.path, lines, *_difference(self.source, code), code)


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[cst.CSTNode, cst.CSTNode, Lines]] = []
        self._statements: list[Lines] = []
        self._noise: set[int] = set()
        self._unused: cst.CSTNode | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self._statements.append(self._lines_of(node))
        if isinstance(node, cst.Raise | cst.Expr) and _may_go(node):
            self.changes.append((node, cst.Pass(), self._statements[-1]))
        if isinstance(node, cst.Expr):
            self._unused = node.value
        if isinstance(node, cst.Call):
            used = node is not self._unused
            self._noise.update(id(arg) for arg in node.args if _is_noise_in(node, arg, used))
        if _is_noise(node) or id(node) in self._noise:
            return False
        for other in _changed(node, self._noise):
            lines = self._statements[-1]
            if not isinstance(node, cst.BaseSmallStatement) and lines[1] < self._lines_of(node)[0]:
                lines = self._lines_of(node)
            self.changes.append((node, other, lines))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self._statements.pop()

    def _lines_of(self, node: cst.CSTNode) -> Lines:
        """A statement's lines; of one that has others inside, those of its head."""
        place = self.get_metadata(PositionProvider, node, None)
        if place is None:
            return self._statements[-1]
        end = place.end.line
        body = getattr(node, "body", None)
        if isinstance(node, cst.BaseCompoundStatement) and isinstance(body, cst.CSTNode):
            end = max(place.start.line, self.get_metadata(PositionProvider, body).start.line - 1)
        return place.start.line, end


def _may_go(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Raise) or m.matches(node, m.Expr(m.Call()))


def _is_noise(node: cst.CSTNode) -> bool:
    """Return whether nothing in the node is to be changed."""
    if isinstance(
        node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Raise | cst.Assert
    ):
        return True
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString):
        return True
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return _is_unseen(node)
    if isinstance(node, cst.If):
        return m.matches(node.test, m.Name("TYPE_CHECKING"))
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Name) and node.func.value in WHOLE_CALLS
    return _is_message(node)


def _is_unseen(node: cst.Assign | cst.AnnAssign) -> bool:
    target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
    if not isinstance(target, cst.Name):
        return False
    alias = target.value[:1].isupper() and not target.value.isupper()  # CamelCase is a type
    return target.value in UNSEEN or alias


def _is_noise_in(call: cst.Call, arg: cst.Arg, used: bool) -> bool:
    """Return whether an argument is to stay as it is, in a call whose result is used or not."""
    if arg.keyword is not None and arg.keyword.value in GUARDS:
        return True
    if arg.keyword is not None and arg.keyword.value == "out":
        return used
    return _is_message(arg.value) or (_draws(call) and isinstance(arg.value, cst.BaseString))


def _is_message(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.ConcatenatedString):
        return _is_message(node.left) or _is_message(node.right)
    return isinstance(node, cst.FormattedString)


def _changed(node: cst.CSTNode, noise: set[int]) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if not isinstance(node, kind):
            continue
        others = operator(node)
        if operator is operator_string:
            yield from list(others)[:1]
        elif operator is operator_arg_removal:
            yield from (o for o in others if _is_worth_it(node, o, noise))
        elif isinstance(node, cst.ComparisonTarget) and _is_tolerance(node):
            yield from (o for o in others if not _keeps_order(node, o))
        elif operator is operator_assignment and node.value and _is_never_none(node.value):
            continue
        else:
            yield from others


def _is_tolerance(target: cst.ComparisonTarget) -> bool:
    value = target.comparator
    return isinstance(value, cst.Name) and value.value.isupper()


def _keeps_order(target: cst.ComparisonTarget, other: cst.ComparisonTarget) -> bool:
    """Return whether both compare by size: < becomes <= and so on."""
    sizes = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
    return isinstance(target.operator, sizes) and isinstance(other.operator, sizes)


def _is_never_none(value: cst.BaseExpression) -> bool:
    return _is_message(value) or m.matches(value, m.Name("False") | m.Call(m.Name("fresh")))


def _is_worth_it(call: cst.Call, other: cst.Call, noise: set[int]) -> bool:
    """Return whether the argument that `other` lacks, or has None for, may be changed so."""
    kept = {id(arg) for arg in other.args}
    arg = next(arg for arg in call.args if id(arg) not in kept)
    as_none = m.matches(arg.value, m.Name("False")) and len(other.args) == len(call.args)
    return id(arg) not in noise and not as_none


def _draws(call: cst.Call) -> bool:
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return isinstance(name, cst.Name) and name.value in STREAMS


def _replaced(module: cst.Module, node: cst.CSTNode, other: cst.CSTNode) -> str:
    changed = module.deep_replace(node, other)
    assert isinstance(changed, cst.Module)
    return changed.code


def _difference(source: str, code: str) -> tuple[str, str]:
    """Return the lines that differ, each side as one line of text."""
    before, after = source.splitlines(), code.splitlines()
    taken: Sequence[list[str]] = ([], [])
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    for tag, i, j, k, n in matcher.get_opcodes():
        if tag != "equal":
            taken[0].extend(before[i:j])
            taken[1].extend(after[k:n])
    first, second = (" ".join(line.strip() for line in lines) for lines in taken)
    return first, second
