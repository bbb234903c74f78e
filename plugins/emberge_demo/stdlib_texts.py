"""The `stdlib_texts` step: prose and code of Python files as texts to train on."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    DataError,
    NumberRange,
    Preflight,
    Problem,
    Step,
    Workspace,
)
from emberge.data import even_place, parse_source, write_entries, write_json_rows

from emberge_demo.corpus import (
    STDLIB,
    licence,
    locate,
    missing_package,
    source_files,
    version,
)

_SETS = ("prose", "code")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class StdlibTexts(Step):
    """Texts of installed packages' Python files: each module's docstrings, and its code without docstrings.

    The result is two sets for losses over tokens, `prose` and `code`; each text is from one module. The share
    `held_out` of the modules, by a hash of their name, is in development sets with the same names, which a
    recipe reads with `split: dev`. Code has no comments.

    Example:
        texts:
          stdlib_texts: {packages: [stdlib, numpy]}
    """

    packages: tuple[str, ...] = (STDLIB,)
    """Packages to read; `stdlib` is the standard library."""
    held_out: Annotated[float, NumberRange(above=0, below=1)] = 0.1
    """Share of the modules that no training sees."""

    produces: ClassVar[ArtifactKind] = "data"

    def identity(self) -> str:
        """Return the versions of Python and the packages, on which the texts depend."""
        packages = [f"{name} {version(name)}" for name in self.packages if locate(name)]
        return "; ".join([f"python {version(STDLIB)}", *packages])

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.packages:
            yield context.problem("packages names nothing to read; write [stdlib]", "packages")
        for name in self.packages:
            if locate(name) is None:
                yield context.problem(missing_package(name), "packages")

    def run(self, workspace: Workspace) -> Artifact:
        """Read the packages' files and write the sets and their catalogue.

        Raises:
            DataError: if a package is not installed, or a set would have no text.
        """
        rows = _Rows()
        for number, package in enumerate(self.packages):
            workspace.progress(number, len(self.packages), "packages", f"reading {package}")
            for module, texts in _yield_modules(package):
                is_held_out = even_place("texts", module) < self.held_out * 2**64
                for name, text in texts.items():
                    rows.add("dev" if is_held_out else "train", name, text)
        return rows.write(self, workspace)


@dataclass
class _Rows:
    """Texts by half (training or development) and set, without repeats."""

    texts: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def add(self, half: str, name: str, text: str) -> None:
        if text and text not in self.seen:
            self.seen.add(text)
            self.texts.setdefault((half, name), []).append(text)

    def write(self, options: StdlibTexts, workspace: Workspace) -> Artifact:
        catalogue: dict[str, Any] = {}
        for half in ("train", "dev"):
            entries = []
            for name in _SETS:
                texts = self.texts.get((half, name))
                if not texts:
                    raise DataError(f"there is no {name} for {half} in the packages; name more")
                path = f"{half}/{name}.jsonl.gz"
                count = write_json_rows(workspace.folder / path, ({"text": text} for text in texts))
                entries.append({"name": name, "file": path, "task": "text", "rows": count})
            catalogue[half] = entries
        write_entries(workspace.folder, catalogue)
        return Artifact(
            kind="data",
            size=sum(entry["rows"] for entry in catalogue["train"]),
            details={
                "characters": {
                    f"{half}/{name}": sum(map(len, texts))
                    for (half, name), texts in self.texts.items()
                },
                "versions": {name: version(name) for name in options.packages},
                "licences": {name: licence(name) for name in options.packages},
            },
        )


def _yield_modules(package: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each module's name with its texts by set, in the order of names.

    Raises:
        DataError: if the package is not installed.
    """
    folder = locate(package)
    if folder is None:
        raise DataError(missing_package(package))
    for module, path in source_files(package, folder):
        parsed = parse_source(path)
        if parsed is not None:
            prose = "\n\n".join(_take_docstrings(parsed[0]))
            yield module, {"prose": prose, "code": ast.unparse(parsed[0])}


def _take_docstrings(tree: ast.Module) -> list[str]:
    """Take the docstrings out of a tree, and return them in the order of the file."""
    docstrings = []
    for node in ast.walk(tree):
        if isinstance(node, _Documented) and (text := ast.get_docstring(node, clean=False)):
            docstrings.append((node.body[0].lineno, inspect.cleandoc(text)))
            node.body = node.body[1:] or [ast.Pass()]
    # Half a surrogate pair, which a docstring may spell, is no text.
    return [text.encode(errors="replace").decode() for _, text in sorted(docstrings)]
