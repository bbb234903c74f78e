"""The `stdlib_tasks` step: labelled words and texts of Python files, to fine-tune models on."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from emberge import Artifact, ArtifactKind, Count, DataError, Preflight, Problem, Step, Workspace
from emberge.data import even_place, write_entries, write_json_rows

from emberge_demo.corpus import STDLIB, Definition, definitions, locate, version

_HALVES = ("train", "dev", "test")
_SHORTEST = 8  # words of a function
_KINDS = {tokenize.OP: "operator", tokenize.NUMBER: "number", tokenize.STRING: "text"}
# What a name is by the word before it.
_AFTER = {"def": "definition", "class": "definition", "import": "import", ".": "attribute"}


@dataclass(frozen=True, kw_only=True)
class StdlibTasks(Step):
    """Two tasks to fine-tune on, made from the documented functions of the standard library.

    The task `names` has the words of a function (`words`) with the kind of each word (`labels`), derived from
    `tokenize` and the neighbouring words. A word is a keyword, an operator, a number, a text, or a name; a
    name is defined, called, given as an argument, imported, an attribute, or none of these. Some kinds follow
    from the word before, some from the word after. The task `modules` has first paragraphs of docstrings
    (`text`) with their module or package (`label`), for the `classes` labels with most texts. Functions are
    split by a hash of their name; sets are called `names_train`, `names_dev`, `names_test` and so on.

    Example:
        tasks:
          stdlib_tasks: {rows: 1000}
    """

    rows: Count = 2000
    """Rows to train on at most; development and test sets have at most half as many each."""
    words: Count = 48
    """Words of a row of `names`; a longer function is cut there."""
    classes: Count = 12
    """Labels of `modules`."""

    produces: ClassVar[ArtifactKind] = "data"

    def identity(self) -> str:
        """Return Python's version, on which the functions depend."""
        return f"python {version(STDLIB)}"

    def check(self, context: Preflight) -> Iterator[Problem]:
        for option, smallest in (("rows", 8), ("words", _SHORTEST), ("classes", 2)):
            if getattr(self, option) < smallest:
                yield context.problem(f"{option} must be {smallest} or more", option)

    def run(self, workspace: Workspace) -> Artifact:
        """Read the library's files and write the sets and their catalogue.

        Raises:
            DataError: if Python lacks the files of its library.
        """
        folder = locate(STDLIB)
        functions = list(definitions(STDLIB, folder)) if folder is not None else []
        tasks = {
            "names": list(self._yield_labelled(functions)),
            "modules": self._list_modules(functions),
        }
        entries: list[dict[str, Any]] = []
        for name, rows in tasks.items():
            for half, half_rows in self._draw_halves(rows, workspace).items():
                path = f"{name}/{half}.jsonl.gz"
                count = write_json_rows(workspace.folder / path, half_rows)
                entry = {"name": f"{name}_{half}", "file": path, "task": "classification"}
                entries.append({**entry, "rows": count})
        write_entries(workspace.folder, {"train": entries})
        return Artifact(
            kind="data",
            size=sum(entry["rows"] for entry in entries),
            details={"rows": {entry["name"]: entry["rows"] for entry in entries}},
        )

    def _draw_halves(
        self, rows: Sequence[Mapping[str, Any]], workspace: Workspace
    ) -> dict[str, list[Mapping[str, Any]]]:
        """Split rows by the hash of their ids, and return them without the ids."""
        halves: dict[str, list[Mapping[str, Any]]] = {half: [] for half in _HALVES}
        for row in sorted(rows, key=lambda row: even_place("row", row["id"])):
            half = _HALVES[max(0, even_place("half", row["id"]) % 4 - 1)]
            limit = self.rows if half == "train" else self.rows // 2
            if len(halves[half]) < limit:
                halves[half].append({k: value for k, value in row.items() if k != "id"})
        for half, half_rows in halves.items():
            if not half_rows:
                raise DataError(f"there are too few documented functions in {STDLIB} for {half}")
        return halves

    def _yield_labelled(self, functions: Iterable[Definition]) -> Iterator[Mapping[str, Any]]:
        for definition in functions:
            labelled = labelled_words(definition.document)[: self.words]
            if len(labelled) >= _SHORTEST:
                words, labels = zip(*labelled, strict=True)
                yield {"id": definition.id, "words": words, "labels": labels}

    def _list_modules(self, functions: Iterable[Definition]) -> list[Mapping[str, Any]]:
        texts = {d.query: d for d in functions if len(d.query.split()) >= 3}
        counts = Counter(_find_module(d) for d in texts.values())
        most = {name for name, _ in counts.most_common(self.classes)}
        return [
            {"id": d.id, "text": text, "label": _find_module(d)}
            for text, d in texts.items()
            if _find_module(d) in most
        ]


def _find_module(definition: Definition) -> str:
    return definition.module.partition(".")[0]


def labelled_words(code: str) -> list[tuple[str, str]]:
    """Return the words of a function with the kind of each; none for incomplete code."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, IndentationError):
        return []
    kinds = (tokenize.NAME, *_KINDS)
    words = [token for token in tokens if token.type in kinds and token.string.isprintable()]
    padded_words = ["", *(token.string for token in words), ""]
    return [
        (
            token.string,
            _classify_name(padded_words[number], token.string, padded_words[number + 2])
            if token.type == tokenize.NAME
            else _KINDS[token.type],
        )
        for number, token in enumerate(words)
    ]


def _classify_name(before: str, word: str, after: str) -> str:
    if keyword.iskeyword(word):
        return "keyword"
    if before in _AFTER:
        return "method" if (before, after) == (".", "(") else _AFTER[before]
    if after == "(":
        return "call"
    return "argument" if after == "=" and before in ("(", ",") else "name"
