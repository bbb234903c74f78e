"""Steps over the files of Python and its packages: texts to train on, and kinds of words of functions."""

from __future__ import annotations

import ast
import inspect
import io
import keyword
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from emberge import Artifact, DataError, Preflight, Problem, Step, Workspace, hash_evenly, hookimpl
from emberge_data import parse_source, write_entries, write_json_rows
from emberge_demo.installed_code import (
    STDLIB,
    describe_missing_package,
    find_package_folder,
    list_source_files,
    read_definitions,
    read_version,
)

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
WORDS = 48  # of a function; a longer one is cut there
KINDS = {tokenize.OP: "operator", tokenize.NUMBER: "number", tokenize.STRING: "text"}
# What a name is by the word before it.
AFTER = {"def": "definition", "class": "definition", "import": "import", ".": "attribute"}


def find_folder(package: str) -> Path:
    """Return the folder of a package; raise DataError if it is not installed."""
    folder = find_package_folder(package)
    if folder is None:
        raise DataError(describe_missing_package(package))
    return folder


@dataclass(frozen=True, kw_only=True)
class StdlibTexts(Step):
    """Sets `prose` and `code`: the docstrings of each module, and its code without them and without comments.

    The share `held_out` of the modules, by a hash of their name, is in development sets of the same names.
    """

    produces = "data"

    packages: tuple[str, ...] = (STDLIB,)
    """Packages to read; `stdlib` is the standard library."""
    held_out: float = 0.1

    def identity(self) -> str:
        return "; ".join(f"{name} {read_version(name)}" for name in self.packages)

    def check(self, context: Preflight) -> Iterator[Problem]:
        for name in self.packages:
            if find_package_folder(name) is None:
                yield context.problem(describe_missing_package(name), "packages")

    def run(self, workspace: Workspace) -> Artifact:
        texts: dict[tuple[str, str], dict[str, None]] = {
            (half, name): {} for half in ("train", "dev") for name in ("prose", "code")
        }
        seen: set[str] = set()
        for package in self.packages:
            for module, path in list_source_files(package, find_folder(package)):
                if (parsed := parse_source(path)) is None:
                    continue
                half = "dev" if hash_evenly("texts", module) < self.held_out * 2**64 else "train"
                prose = "\n\n".join(take_docstrings(parsed[0]))
                for name, text in (("prose", prose), ("code", ast.unparse(parsed[0]))):
                    if text and text not in seen:
                        seen.add(text)
                        texts[half, name][text] = None
        catalogue: dict[str, list[Mapping[str, str]]] = {"train": [], "dev": []}
        for (half, name), found in texts.items():
            file = f"{half}/{name}.jsonl"
            write_json_rows(workspace.folder / file, ({"text": text} for text in found))
            catalogue[half].append({"name": name, "file": file, "task": "text"})
        write_entries(workspace.folder, catalogue)
        return Artifact(
            kind="data", size=len(texts["train", "prose"]) + len(texts["train", "code"])
        )


def take_docstrings(tree: ast.Module) -> list[str]:
    """Take the docstrings out of a tree, and return them in the order of the file."""
    docstrings = []
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
            docstrings.append((node.body[0].lineno, inspect.cleandoc(text)))
            node.body = node.body[1:] or [ast.Pass()]
    # Half a surrogate pair, which a docstring may spell, is no text.
    return [text.encode(errors="replace").decode() for _, text in sorted(docstrings)]


@dataclass(frozen=True, kw_only=True)
class StdlibTasks(Step):
    """Sets `names_train`, `names_dev`, `names_test`: `words` of functions, and `labels` with their kinds.

    A word is a keyword, an operator, a number, a text, or a name, which is defined, called, given as an
    argument, imported, an attribute, or none of these. Functions are split by a hash of their name.
    """

    produces = "data"

    rows: int = 2000
    """Rows to train on at most; development and test have at most half as many each."""

    def identity(self) -> str:
        return read_version(STDLIB)

    def run(self, workspace: Workspace) -> Artifact:
        halves: dict[str, list[Mapping[str, tuple[str, ...]]]] = {
            "train": [],
            "dev": [],
            "test": [],
        }
        functions = sorted(
            read_definitions(STDLIB, find_folder(STDLIB)),
            key=lambda one: hash_evenly("row", one.id),
        )
        for function in functions:
            labelled = label_words(function.document)[:WORDS]
            half = ("train", "train", "dev", "test")[hash_evenly("half", function.id) % 4]
            if len(labelled) >= 8 and len(halves[half]) < self.rows // (1 + (half != "train")):
                words, labels = zip(*labelled, strict=True)
                halves[half].append({"words": words, "labels": labels})
        entries = []
        for half, rows in halves.items():
            file = f"names/{half}.jsonl"
            write_json_rows(workspace.folder / file, rows)
            entries.append({"name": f"names_{half}", "file": file, "task": "classification"})
        write_entries(workspace.folder, {"train": entries})
        return Artifact(kind="data", size=sum(map(len, halves.values())))


def label_words(code: str) -> list[tuple[str, str]]:
    """Return the words of a function with the kind of each; none for incomplete code."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, IndentationError):
        return []
    words = [t for t in tokens if t.type in (tokenize.NAME, *KINDS) and t.string.isprintable()]
    texts = ["", *(token.string for token in words), ""]
    return [
        (word.string, KINDS.get(word.type) or classify_name(*texts[number : number + 3]))
        for number, word in enumerate(words)
    ]


def classify_name(before: str, word: str, after: str) -> str:
    """Return the kind of a name by the words around it."""
    if keyword.iskeyword(word):
        return "keyword"
    if before in AFTER:
        return "method" if (before, after) == (".", "(") else AFTER[before]
    if after == "(":
        return "call"
    return "argument" if after == "=" and before in ("(", ",") else "name"


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    """Return the steps by their names."""
    return {"stdlib_tasks": StdlibTasks, "stdlib_texts": StdlibTexts}
