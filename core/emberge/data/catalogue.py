"""Catalogues (`datasets.yaml`): training and evaluation sets, their files, and their purposes.

A catalogue is a mapping with the lists `train` and `eval` of sets, and optionally `dev` and `test`, whose
sets have the form of training sets but are not for training. Paths are relative to the catalogue. Further
facts about a set, which emberge does not read (url, citation, counts, …), may have the names in `FREE` and
names that begin with `x-`. Any other name is an error, so that misspelt names are found. Of a training set's
`source` the facts of `DataOrigin` are read, and it may have any further facts; names that are nearly those of
facts that are read are errors. The licence may be beside the set's name too.

A plain number is text unless a number is expected (`name: 2020`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from emberge.contracts import DataOrigin, DataRef
from emberge.data.entry import Catalogue, DataEntry, EvalSet
from emberge.data.file_summary import format_path
from emberge.errors import DataError, Problem, RecipeError, closest_word, suggest
from emberge.files import UnsoundFileError, read_regular
from emberge.options import options_of, read_record
from emberge.yaml_nodes import Fields, Items, Node, Scalar, describe_node, plain, read_yaml

_Built = TypeVar("_Built")
_Set = TypeVar("_Set", DataEntry, EvalSet)

CATALOGUE_BYTES = 4 << 20
"""Largest number of bytes of a catalogue; a catalogue of a thousand sets has a tenth of it."""

FREE = frozenset(
    {
        *("source", "licence", "license", "url", "homepage", "citation", "description", "notes"),
        *("rows", "n", "scores", "labels", "corpus", "queries", "qrels", "language", "category"),
        *("domain", "metric", "baseline", "distance"),
    }
)
_LICENCE_KEYS = ("licence", "license")
# Values of facts that are not stated.
_UNKNOWN = ("", "unknown", "null", "~")
# Options of `DataEntry` and `EvalSet` that a catalogue has under other names, or not at all.
_NOT_IN_SETS = frozenset({"only", "source", "where", "rows"})
_NUMBERS = ("weight", "limit", "first")
# The form of a query's instruction (Wang et al., 2024, arXiv:2401.00368).
INSTRUCTION = "Instruct: {instruction}\nQuery: "


def instruction_prompt(instruction: str) -> str:
    """Return the prompt built from an instruction; "" for an empty instruction."""
    return INSTRUCTION.format(instruction=instruction) if instruction.strip() else ""


def load_catalogue(path: Path) -> Catalogue:
    """Read a catalogue, given its file or the folder in which it is called `datasets.yaml`.

    Raises:
        DataError: if an entry is missing, misspelt or of a wrong type; names file and line.
    """
    path = Path(path)
    path = path / "datasets.yaml" if path.is_dir() else path
    try:
        text = read_regular(path, limit=CATALOGUE_BYTES).decode("utf-8")
    except UnsoundFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(
            f"{format_path(path)}: there is no such catalogue ({error.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            f"{format_path(path)}: the catalogue is not UTF-8 text; save it as such"
        ) from None
    return _parse_catalogue(path, text, Path.cwd())


@functools.lru_cache(maxsize=16)
def _parse_catalogue(
    path: Path,
    text: str,
    folder: Path,  # noqa: ARG001 - places in messages are relative to it
) -> Catalogue:
    """Return the catalogue of a file's text; cached, as the steps of a recipe share few catalogues."""
    problems: list[Problem] = []
    root = read_yaml(
        text, lambda line: f"{format_path(path)}:{line}", problems, what="the catalogue"
    )
    if root is None or problems:
        raise DataError(str(problems[0]))
    sets = _read_fields(root, {"train", "dev", "test", "eval", "format"})
    if str(plain(sets.entries.get("format", Scalar(1, "1", "")))) != "1":
        raise DataError(f"{sets.line('format')}: this version reads catalogues of format 1")
    train, dev, test = (
        tuple(_read_entry(path.parent, fields) for fields in _list_sets(sets, part))
        for part in ("train", "dev", "test")
    )
    evaluation = tuple(_read_evaluation(path.parent, f) for f in _list_sets(sets, "eval"))
    if not train and not test and not evaluation:
        raise DataError(f"{sets.where}: the catalogue lists no set under train, test or eval")
    return Catalogue(path=path, train=train, dev=dev, test=test, eval=evaluation)


def _list_sets(sets: Fields, part: str) -> Iterator[Fields]:
    """Yield the sets of one part of a catalogue, each with a name of its own."""
    node = sets.entries.get(part)
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return
    if not isinstance(node, Items):
        raise DataError(f"{node.where}: expected a list of sets (- name: …)")
    names: list[str] = []
    for item in node.items:
        fields = _read_fields(item)
        name = _read_text(_require(fields, "name"))
        if not name.strip() or not name.isprintable():
            message = f"a name is a word without control characters, not {name!r}"
            raise DataError(f"{fields.line('name')}: {message}")
        if name in names:
            raise DataError(f"{item.where}: two sets under {part} are named '{name}'; rename one")
        names.append(name)
        yield fields


def _read_fields(node: Node, known: Iterable[str] | None = None) -> Fields:
    """Return a node as a mapping; names are those in `known`, and any that begin with `x-`."""
    if not isinstance(node, Fields):
        raise DataError(f"{node.where}: expected names with values (name: value)")
    allowed = sorted(node.entries if known is None else known)
    for name in node.entries:
        if name not in allowed and not name.startswith("x-"):
            hint = suggest(name, allowed) or f"; known: {', '.join(allowed)}"
            raise DataError(f"{node.line(name)}: there is no '{name}' here{hint}")
    return node


def _read_text(node: Node) -> str:
    if not isinstance(node, Scalar):
        raise DataError(f"{node.where}: expected a text, not {describe_node(node)}")
    return node.text


def _require(fields: Fields, name: str) -> Node:
    if name not in fields.entries:
        raise DataError(f"{fields.where}: the set has no '{name}'; add it")
    return fields.entries[name]


def _find_place(fields: Fields, *names: str) -> Node | None:
    """Return the one value that has one of these names for the place of a set; None if none is there."""
    present = [name for name in names if name in fields.entries]
    if len(present) > 1:
        message = f"'{present[0]}' and '{present[1]}' say the same; keep one"
        raise DataError(f"{fields.where}: {message}")
    return fields.entries[present[0]] if present else None


def _read_entry(folder: Path, fields: Fields) -> DataEntry:
    """Return a training set; its paths are relative to `folder`."""
    where = _find_place(fields, "path", "file")
    if (where is None) == ("hub" not in fields.entries):
        raise DataError(f"{fields.where}: a set has either a path or a hub id; name one")
    entry = _build_set(DataEntry, fields, ("path", "file"), folder)
    entry = replace(entry, source=_read_origin(fields.entries))
    if where is None:
        return entry
    documents = entry.documents and str(folder / entry.documents)
    return replace(entry, path=DataRef(str(folder / _read_text(where))), documents=documents)


def _read_evaluation(folder: Path, fields: Fields) -> EvalSet:
    """Return an evaluation set; its folder is relative to `folder`."""
    places = ("dir", "folder", "path")
    where = _find_place(fields, *places)
    if where is None:
        raise DataError(f"{fields.where}: the set has no 'dir'; say where it lies")
    if plain(_require(fields, "task")) == "text":
        message = "single texts cannot be scored; list them under train"
        raise DataError(f"{fields.line('task')}: {message}")
    found = _build_set(EvalSet, fields, places, folder, {"folder": where})
    prompt = found.prompt if "prompt" in fields.entries else instruction_prompt(found.instruction)
    symmetric = found.symmetric
    if "symmetric" not in fields.entries:
        symmetric = found.task not in ("retrieval", "reranking")
    return replace(found, prompt=prompt, symmetric=symmetric, where=fields.where)


def _build_set(
    owner: type[_Set],
    fields: Fields,
    places: Sequence[str],
    folder: Path,
    found: Mapping[str, Node] = MappingProxyType({}),
) -> _Set:
    """Build a set from those facts that are options of `owner`, and from the options in `found`."""
    options: set[str] = set(options_of(owner)) - _NOT_IN_SETS
    _read_fields(fields, {*options, *places, *FREE})
    stated = {
        name: _read_word(name, node)
        for name, node in fields.entries.items()
        if name in options and name not in places and plain(node) is not None
    }
    label = f"set '{_read_text(fields.entries['name'])}'"
    one = _build(owner, Fields({**stated, **found}, fields.where, fields.lines), label, folder)
    if one.score_range is not None and not one.score_range[0] < one.score_range[1]:
        raise DataError(f"{fields.line('score_range')}: score_range is [lowest, highest]")
    return one


def _read_word(name: str, node: Node) -> Node:
    """Return a plain number as text, unless the option is a number."""
    is_number = isinstance(node, Scalar) and type(node.value) in (int, float)
    if not is_number or name in _NUMBERS:
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
    known = options_of(DataOrigin)
    for name in facts.entries:
        near_name = closest_word(name, (*known, *_LICENCE_KEYS))
        if name not in (*known, "license") and near_name and not name.startswith("x-"):
            raise DataError(
                f"{facts.line(name)}: a source has no fact '{name}'; did you mean '{near_name}'? A "
                f"fact of your own may be named 'x-{name}'"
            )
    stated = {name: node for name, node in facts.entries.items() if name in known}
    for beside in (facts.entries, entries):  # beside the set's name it counts more
        for key in reversed(_LICENCE_KEYS):
            stated |= {"licence": beside[key]} if key in beside else {}
    stated = {
        name: replace(node, value=node.text.strip()) if isinstance(node, Scalar) else node
        for name, node in stated.items()
        if not isinstance(node, Scalar) or node.text.strip() not in _UNKNOWN
    }
    return _build(DataOrigin, replace(facts, entries=stated), "a source", Path())
