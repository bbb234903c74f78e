"""The `stdlib_corpus` step: a code-search data set of installed packages, without a download."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    Count,
    DataError,
    Preflight,
    Problem,
    Step,
    Workspace,
    hash_evenly,
)
from emberge.interpreter import locate_package
from emberge_data import parse_source, take_first_paragraph, write_entries, write_json_rows

STDLIB = "stdlib"
# Folders of tests, of copies of other projects, or of programs rather than a library.
SKIPPED = frozenset(
    {
        *("test", "tests", "_tests", "testing", "idlelib", "turtledemo", "lib2to3", "ensurepip"),
        *("site-packages", "dist-packages", "__pycache__", "_vendor", "vendor", "vendored"),
        *(
            "externals",
            "_bundled",
            "pydoc_data",
            "array_api_compat",
            "array_api_extra",
            "_distutils",
        ),
        *("benchmarks", "examples", "_examples", "doc", "docs", "distutils"),
    }
)
SKIPPED_FILES = ("test_", "conftest", "_sysconfigdata", "setup.py", "this.py", "antigravity.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_HELD_OUT = 0.25  # share of the modules that is for search
_FEWEST_WORDS = 3  # of a query
_LONGEST = 2000  # characters of a document
_COMMON = {"task": "retrieval", "language": "en", "symmetric": False, "instruction": ""}


@dataclass(frozen=True, kw_only=True)
class StdlibCorpus(Step):
    """A code-search dataset of the Python files of installed packages.

    A query is the first paragraph of a docstring; its document is the function or method without the
    docstring. Modules are split by a hash of their name: most are for training. A quarter of the modules is
    for search; a quarter of those that have queries is for development, the rest for the test. Every package
    in `out_of_domain` makes a separate search set. A query has at least three words and is neither an example
    nor a signature. A query or document that came before, in any package, is left out. Documents are cut to
    2,000 characters, at the end of a line. `limit`, `test_queries`, `dev_queries` and `test_documents` keep
    even samples; a smaller sample is part of a larger one.

    Example:
        corpus:
          stdlib_corpus: {limit: 5000, test_queries: 200}
    """

    packages: tuple[str, ...] = (STDLIB,)
    """Packages to train on and to test in domain; `stdlib` is the standard library."""
    out_of_domain: tuple[str, ...] = ("numpy", "scipy", "sklearn")
    limit: Count | None = None
    test_queries: Count = 300
    dev_queries: Count = 100
    test_documents: Count = 600

    produces: ClassVar[ArtifactKind] = "data"

    def identity(self) -> str:
        """Return the versions of Python and the packages, on which the functions depend."""
        names = (*self.packages, *self.out_of_domain)
        packages = [f"{n} {version(n)}" if locate(n) else f"{n} is missing" for n in names]
        return "; ".join([f"python {version(STDLIB)}", *packages])

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.packages:
            yield context.problem("packages names nothing to train on; write [stdlib]", "packages")
        yield from self._check_packages(context)

    def _check_packages(self, context: Preflight) -> Iterator[Problem]:
        named: set[str] = set()
        for option in ("packages", "out_of_domain"):
            for name in getattr(self, option):
                if name in named:
                    message = f"package '{name}' is named twice; train on it or test on it, once"
                    yield context.problem(message, option)
                elif locate(name) is None:
                    yield context.problem(missing_package(name), option)
                named.add(name)

    def run(self, workspace: Workspace) -> Artifact:
        """Read the packages' files and write training pairs, evaluation sets and their catalogue.

        Raises:
            DataError: if the package is not installed or has no documented function.
        """
        return _CorpusWriter(self, workspace).corpus()


def usable_definitions(documented: Iterable[Definition], seen: set[str]) -> Iterator[Definition]:
    """Yield distinct definitions that have a usable query and a body, cut to length."""
    for definition in documented:
        document = _cut(definition.document)
        if not document or not _is_telling(definition):
            continue
        keys = {f"q {' '.join(definition.query.lower().split())}", f"d {definition.document}"}
        if keys & seen:
            continue
        seen |= keys
        yield replace(definition, document=document)


def _is_telling(definition: Definition) -> bool:
    query, name = definition.query, definition.name.rpartition(".")[2]
    return len(query.split()) >= _FEWEST_WORDS and not query.startswith((">>>", f"{name}("))


def _cut(document: str) -> str:
    if len(document) <= _LONGEST:
        return document
    return document[:_LONGEST].rpartition("\n")[0].rstrip() or document[:_LONGEST]


def _sample(documents: Sequence[Definition], count: int | None, salt: str) -> list[Definition]:
    sample = sorted(documents, key=lambda d: (hash_evenly(salt, d.id, d.query), d.query))[:count]
    return sorted(sample, key=lambda d: (d.id, d.query))


class _CorpusWriter:
    """The writer of one corpus into a step's folder; the same packages always give the same bytes."""

    def __init__(self, options: StdlibCorpus, workspace: Workspace) -> None:
        self.options, self.workspace = options, workspace
        self.seen: set[str] = set()
        self.catalogue: dict[str, Any] = {"train": [], "eval": []}

    def corpus(self) -> Artifact:
        options = self.options
        size = 0
        for number, package in enumerate((*options.packages, *options.out_of_domain)):
            total = len(options.packages) + len(options.out_of_domain)
            self.workspace.progress(number, total, "packages", f"reading {package}")
            usable = self.read(package)
            if package in options.out_of_domain:
                self.evaluation(package, usable, "out")
                continue
            training = [d for d in usable if not self.held_out(d.module)]
            size += self.training(package, _sample(training, options.limit, "train"))
            self.evaluation(package, [d for d in usable if self.held_out(d.module)], "in")
        write_entries(self.workspace.folder, self.catalogue)
        return Artifact(kind="data", size=size)

    def read(self, package: str) -> list[Definition]:
        folder = locate(package)
        if folder is None:
            raise DataError(missing_package(package))
        usable = list(usable_definitions(definitions(package, folder), self.seen))
        if not usable:
            raise DataError(
                f"package '{package}' has no documented functions in {folder}; leave it out"
            )
        return usable

    def held_out(self, module: str) -> bool:
        return hash_evenly("split", module) < _HELD_OUT * 2**64

    def is_dev(self, module: str) -> bool:
        return hash_evenly("dev", module) % 4 == 0

    def training(self, package: str, rows: Sequence[Definition]) -> int:
        path = f"train/{package}.jsonl"
        self.write(path, ({"query": d.query, "pos": [d.document], "neg": []} for d in rows))
        source = {"package": package, "version": version(package)}
        source |= {"licence": "PSF-2.0"} if package == STDLIB else {}
        entry = {"name": package, "file": path, **_COMMON, "source": source}
        self.catalogue["train"].append(entry)
        return len(rows)

    def evaluation(self, package: str, definitions: Sequence[Definition], domain: str) -> None:
        documents = _sample(definitions, self.options.test_documents, "documents")
        split = domain == "in"
        dev = [d for d in documents if split and self.is_dev(d.module)]
        other_documents = [d for d in documents if not (split and self.is_dev(d.module))]
        test = _sample(other_documents, self.options.test_queries, "test")
        if not test:
            raise DataError(
                f"package '{package}' has too few modules to hold some out; leave it out"
            )
        dev = _sample(dev, self.options.dev_queries, "dev")
        ids = _make_ids(documents)
        folder = f"eval/{package}"
        corpus = ({"_id": ids[d], "title": "", "text": d.document} for d in documents)
        self.write(f"{folder}/corpus.jsonl", corpus)
        queries = ({"_id": f"q:{ids[d]}", "text": d.query} for d in (*test, *dev))
        self.write(f"{folder}/queries.jsonl", queries)
        halves = {"test": test, **({"dev": dev} if dev else {})}
        for half, half_documents in halves.items():
            name = "qrels.tsv" if half == "test" else f"qrels_{half}.tsv"
            lines = [f"q:{ids[d]}\t{ids[d]}\t1" for d in half_documents]
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
            (self.workspace.folder / folder / name).write_text(text, encoding="utf-8")
        facts = {"domain": domain, "metric": "ndcg_at_10"}
        self.catalogue["eval"].append({"name": package, "dir": folder, **_COMMON, **facts})

    def write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        write_json_rows(self.workspace.folder / name, rows)


def _make_ids(documents: Sequence[Definition]) -> dict[Definition, str]:
    """Return a readable id for each definition; a name that a module defines twice gets a number."""
    ids: dict[Definition, str] = {}
    counts: dict[str, int] = {}
    for definition in documents:
        counts[definition.id] = counts.get(definition.id, 0) + 1
        is_repeated = counts[definition.id] > 1
        ids[definition] = (
            f"{definition.id}#{counts[definition.id]}" if is_repeated else definition.id
        )
    return ids


# Documented functions of installed packages.


@dataclass(frozen=True, slots=True)
class Definition:
    """One documented function or method: `module` is dotted, `name` qualified by its classes."""

    module: str
    name: str
    query: str
    document: str

    @property
    def id(self) -> str:
        """`module.name`, which a package may give twice (overloads, branches)."""
        return f"{self.module}.{self.name}"


def locate(package: str) -> Path | None:
    """Return the folder of a package or of the standard library; None if there is none."""
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    return locate_package(package)


@functools.cache
def _map_providers() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def missing_package(name: str) -> str:
    """Return the advice for a package that is not installed under that name."""
    return f"package '{name}' is not installed (or is one file); install it, or leave it out"


def version(package: str) -> str:
    """Return the installed version of a package; for the standard library, the interpreter's version."""
    if package == STDLIB:
        return ".".join(str(part) for part in sys.version_info[:3])
    names = _map_providers().get(package, [])
    return importlib.metadata.version(names[0]) if names else "unknown"


def source_files(package: str, folder: Path) -> list[tuple[str, Path]]:
    """Return the dotted module name and the file of every Python file to read, sorted by name."""
    files = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        if SKIPPED.intersection(parts[:-1]) or parts[-1].startswith(SKIPPED_FILES):
            continue
        module = ".".join(parts).removesuffix(".py").removesuffix("__init__").rstrip(".")
        prefix = "" if package == STDLIB else package
        name = ".".join(part for part in (prefix, module) if part)
        if name:
            files.append((name, path))
    return sorted(files)


def definitions(package: str, folder: Path) -> Iterator[Definition]:
    """Yield every documented function and method of the package, module by module, in order of lines.

    Files that this version of Python cannot parse are skipped.
    """
    for module, path in source_files(package, folder):
        yield from _read_file(module, path)


def _read_file(module: str, path: Path) -> Iterator[Definition]:
    parsed = parse_source(path)
    if parsed is None:
        return
    tree, text = parsed
    # Not splitlines: form feeds end no line for `ast`.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for name, node in _yield_functions(tree, ""):
        docstring = ast.get_docstring(node, clean=False)
        if docstring is None:
            continue
        yield Definition(
            module, name, take_first_paragraph(docstring), without_docstring(node, lines)
        )


def _yield_functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield functions of modules and classes, also under `if` and `try`, but not those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _yield_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _yield_functions(node, prefix)


def without_docstring(node: Function, lines: list[str]) -> str:
    """Return the definition's text with decorators and comments, without docstring, at the left margin.

    The text is empty if the function's body has nothing but the docstring, `pass`, `...` or one `raise`, or
    if code is on the docstring's lines.
    """
    docstring, *body = node.body
    start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
    shares_line = bool(lines[start][: docstring.col_offset].strip())
    if not _has_body(body) or shares_line or body[0].lineno == end:
        return ""
    first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    while not lines[end].strip():
        end += 1
    text_lines = [*lines[first_line:start], *lines[end : node.end_lineno or end]]
    return "\n".join(_remove_indentation(line, node.col_offset) for line in text_lines).strip()


def _remove_indentation(line: str, columns: int) -> str:
    """Return the line without its indentation; text inside of strings may begin further left."""
    return line[columns:].rstrip() if not line[:columns].strip() else line.rstrip()


def _has_body(statements: list[ast.stmt]) -> bool:
    for statement in statements:
        if isinstance(statement, ast.Pass | ast.Raise):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        return True
    return False
