"""Catalogues (`datasets.yaml`): training and evaluation sets, their files, and their purposes.

A catalogue is a mapping with the lists `train` and `eval` of sets, and optionally `dev` and `test`, whose
sets have the form of training sets but are not for training. Paths are relative to the catalogue. Further
facts about a set, which emberge does not read (url, citation, counts, …), may have the names in
`FURTHER_FACTS` and names that begin with `x-`. Any other name is an error, so that misspelt names are found.
A training set's `source` may have any facts, of which those of `DataOrigin` are read; the licence may be a
fact of the set itself too.

A plain number is text unless a number is expected (`name: 2020`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from emberge.contracts import DataOrigin, DataRef
from emberge.data.entry import Catalogue, DataEntry, ListedEvalSet
from emberge.errors import DataError, Problem, RecipeError, UnsoundFileError, suggest
from emberge.files import read_regular
from emberge.options import read_options, read_record
from emberge.wording import format_path
from emberge.yaml_nodes import Fields, Items, Node, Scalar, describe_node, read_yaml, to_plain

_Built = TypeVar("_Built")

CATALOGUE_BYTES = 4 << 20
"""Largest number of bytes of a catalogue; a catalogue of a thousand sets has a tenth of it."""

FURTHER_FACTS = frozenset(
    {
        *("source", "licence", "license", "url", "homepage", "citation", "description", "notes"),
        *("rows", "n", "scores", "labels", "corpus", "queries", "qrels", "language", "category"),
        *("domain", "metric", "baseline", "distance"),
    }
)
# Noun for each part of a catalogue besides the training sets, and what to do where it is missing.
HELD_OUT_PARTS: Mapping[str, tuple[str, str]] = {
    "dev": ("development sets", "a step split makes them"),
    "test": ("test sets", "a step split makes them if it has the option `test: 0.1`"),
}
EVAL_PATH_NAMES = ("dir", "folder", "path")
_LICENCE_KEYS = ("licence", "license")
# Values of facts that are not stated.
_UNKNOWN_WORDS = ("", "unknown", "null", "~")
# Options of sets that a catalogue has under other names, or not at all.
_NOT_IN_SETS = frozenset({"only", "source", "where", "rows"})
_NUMBER_OPTIONS = ("weight", "limit", "first")
# The form of a query's instruction (Wang et al., 2024, arXiv:2401.00368).
INSTRUCTION = "Instruct: {instruction}\nQuery: "


def build_instruction_prompt(instruction: str) -> str:
    """Return the prompt built from an instruction; "" for an empty instruction."""
    return INSTRUCTION.format(instruction=instruction) if instruction.strip() else ""


def load_catalogue(path: Path) -> Catalogue:
    """Read a catalogue, given its file or the folder in which it is called `datasets.yaml`.

    Raises:
        DataError: if an entry is missing, misspelt or of a wrong type; names file and line.
    """
    path = Path(path)
    path = path / "datasets.yaml" if path.is_dir() else path
    place = format_path(path)
    try:
        text = read_regular(path, limit=CATALOGUE_BYTES).decode("utf-8")
    except UnsoundFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{place}: there is no such catalogue ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{place}: the catalogue is not UTF-8 text; save it as such") from None
    return _parse_catalogue(path, place, text)


def list_held_out_sets(catalogue: Catalogue, part: str) -> Sequence[DataEntry]:
    """Return the sets of the part `dev` or `test` of a catalogue.

    Raises:
        DataError: if the catalogue has no such part; the message has the step that makes it.
    """
    sets: Sequence[DataEntry] = catalogue.dev if part == "dev" else catalogue.test
    if sets:
        return sets
    noun, remedy = HELD_OUT_PARTS[part]
    raise DataError(
        f"{format_path(catalogue.path)}: the catalogue has no {noun} (`{part}`); {remedy}"
    )


def pick_training_sets(catalogue: Catalogue, only: Sequence[str]) -> list[DataEntry]:
    """Return all training sets of a catalogue or, if `only` is given, the sets that it names.

    Raises:
        DataError: if the catalogue lacks a name in `only`.
    """
    names = [str(set_entry.name) for set_entry in catalogue.train]
    if unknown := next((name for name in only if name not in names), None):
        hint = suggest(unknown, names) or f"; it has {', '.join(names) or 'none'}"
        raise DataError(
            f"{format_path(catalogue.path)}: there is no training set '{unknown}'{hint}"
        )
    return [set_entry for set_entry in catalogue.train if not only or set_entry.name in only]


@functools.lru_cache(maxsize=16)
def _parse_catalogue(path: Path, place: str, text: str) -> Catalogue:
    """Return the catalogue of a file's text; cached, as the steps of a recipe share few catalogues."""
    problems: list[Problem] = []
    root = read_yaml(text, lambda line: f"{place}:{line}", problems, what="the catalogue")
    if root is None or problems:
        raise DataError(str(problems[0]))
    parts = _read_fields(root)
    _refuse_unknown(parts, {"train", "dev", "test", "eval", "format"})
    if str(to_plain(parts.entries.get("format", Scalar(1, "1", "")))) != "1":
        raise DataError(f"{parts.locate('format')}: this version reads catalogues of format 1")
    train, dev, test = (
        tuple(_read_entry(path.parent, fields) for fields in _list_sets(parts, part))
        for part in ("train", "dev", "test")
    )
    evaluation = tuple(_list_eval_set(path.parent, f) for f in _list_sets(parts, "eval"))
    if not train and not test and not evaluation:
        raise DataError(f"{parts.where}: the catalogue lists no set under train, test or eval")
    return Catalogue(path=path, train=train, dev=dev, test=test, eval=evaluation)


def _list_sets(parts: Fields, part: str) -> Iterator[Fields]:
    """Yield the sets of one part of a catalogue, each with a name of its own."""
    node = parts.entries.get(part)
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return
    if not isinstance(node, Items):
        raise DataError(f"{node.where}: expected a list of sets (- name: …)")
    names: set[str] = set()
    for item in node.items:
        fields = _read_fields(item)
        if "name" not in fields.entries:
            raise DataError(f"{fields.where}: the set has no 'name'; add it")
        name = _read_text(fields.entries["name"])
        if not name.strip() or not name.isprintable():
            message = f"a name is a word without control characters, not {name!r}"
            raise DataError(f"{fields.locate('name')}: {message}")
        if name in names:
            raise DataError(f"{item.where}: two sets under {part} are named '{name}'; rename one")
        names.add(name)
        yield fields


def _read_fields(node: Node) -> Fields:
    if not isinstance(node, Fields):
        raise DataError(f"{node.where}: expected names with values (name: value)")
    return node


def _refuse_unknown(fields: Fields, known: Iterable[str]) -> None:
    """Raise DataError for a name that is neither in `known` nor begins with `x-`."""
    allowed = sorted(known)
    for name in fields.entries:
        if name not in allowed and not name.startswith("x-"):
            hint = suggest(name, allowed) or f"; known: {', '.join(allowed)}"
            raise DataError(f"{fields.locate(name)}: there is no '{name}' here{hint}")


def _read_text(node: Node) -> str:
    if not isinstance(node, Scalar):
        raise DataError(f"{node.where}: expected a text, not {describe_node(node)}")
    return node.text


def _read_path(fields: Fields, *names: str) -> str | None:
    """Return a set's path, which has one of these names; None without one."""
    stated = [name for name in names if name in fields.entries]
    if len(stated) > 1:
        message = f"'{stated[0]}' and '{stated[1]}' say the same; keep one"
        raise DataError(f"{fields.where}: {message}")
    return _read_text(fields.entries[stated[0]]) if stated else None


def _read_entry(folder: Path, fields: Fields) -> DataEntry:
    """Return a training set; its paths are relative to `folder`."""
    path = _read_path(fields, "path", "file")
    if (path is None) == ("hub" not in fields.entries):
        raise DataError(f"{fields.where}: a set has either a path or a hub id; name one")
    entry = build_set(DataEntry, fields, ("path", "file"), folder)
    entry = replace(entry, source=_read_origin(fields.entries))
    if path is None:
        return entry
    documents = entry.documents and str(folder / entry.documents)
    return replace(entry, path=DataRef(str(folder / path)), documents=documents)


def _list_eval_set(folder: Path, fields: Fields) -> ListedEvalSet:
    path = _read_path(fields, *EVAL_PATH_NAMES)
    if path is None:
        raise DataError(f"{fields.where}: the set has no 'dir'; say where it lies")
    return ListedEvalSet(folder / path, fields)


def build_set(
    owner: type[_Built], fields: Fields, path_names: Sequence[str], folder: Path
) -> _Built:
    """Build a catalogue's set, without its path, from the facts that are options of `owner`.

    Raises:
        DataError: if a fact is misspelt or of a wrong type; names file and line.
    """
    options: set[str] = set(read_options(owner)) - _NOT_IN_SETS
    _refuse_unknown(fields, {*options, *path_names, *FURTHER_FACTS})
    stated = {
        name: _read_number_as_text(name, node)
        for name, node in fields.entries.items()
        if name in options and name not in path_names and to_plain(node) is not None
    }
    label = f"set '{_read_text(fields.entries['name'])}'"
    return _build(owner, Fields(stated, fields.where, fields.lines), label, folder)


def _read_number_as_text(name: str, node: Node) -> Node:
    is_number = isinstance(node, Scalar) and type(node.value) in (int, float)
    if not is_number or name in _NUMBER_OPTIONS:
        return node
    return Scalar(_read_text(node), _read_text(node), node.where)


def _build(owner: type[_Built], fields: Fields, label: str, folder: Path) -> _Built:
    try:
        return read_record(owner, fields, label, folder)
    except RecipeError as error:
        raise DataError(str(error.problems[0])) from None


def _read_origin(entries: Mapping[str, Node]) -> DataOrigin:
    """Return the stated facts of a set's source; `unknown` stands for a fact that is not stated."""
    source = entries.get("source")
    facts = source if isinstance(source, Fields) else Fields({}, "")
    stated = {n: node for n, node in facts.entries.items() if n in read_options(DataOrigin)}
    for nodes in (facts.entries, entries):  # a licence of the set itself counts more
        for key in reversed(_LICENCE_KEYS):
            stated |= {"licence": nodes[key]} if key in nodes else {}
    stated = {
        name: replace(node, value=node.text.strip()) if isinstance(node, Scalar) else node
        for name, node in stated.items()
        if not isinstance(node, Scalar) or node.text.strip() not in _UNKNOWN_WORDS
    }
    return _build(DataOrigin, replace(facts, entries=stated), "a source", Path())
