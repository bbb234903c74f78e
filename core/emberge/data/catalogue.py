"""Catalogues (`datasets.yaml`): training and evaluation sets, their files, and their purposes.

A catalogue is a mapping with the lists `train` and `eval` of sets, and optionally `dev` and `test`, whose
sets have the form of training sets but are not for training. Paths are relative to the catalogue. Further
facts about a set, which emberge does not read (url, citation, counts, …), may have the names in `FREE` and
names that begin with `x-`. Any other name is an error, so that misspelt names are found. Of a training set's
`source` the facts of `DataOrigin` are read, and it may have any further facts; names that are nearly those of
facts that are read are errors. The licence may be beside the set's name too.

A plain word is text, even if YAML reads it differently (`language: no`), unless a number or flag is expected.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml

from emberge.contracts import TASK_KINDS, DataOrigin, DataRef, Domain
from emberge.data.entry import Catalogue, Columns, DataEntry, EvalSet
from emberge.data.file_summary import format_path
from emberge.errors import DataError, closest_word, suggest
from emberge.files import UnsoundFileError, read_regular
from emberge.yaml_nodes import find_alias_problem

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
_MOST_DIGITS = 18  # largest number of digits of a count
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
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        alias_problem = find_alias_problem(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DataError(f"{format_path(path)}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{format_path(path)}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DataError(f"{format_path(path)}: the catalogue is nested too deeply") from None
    if alias_problem is not None:
        raise DataError(f"{format_path(path)}: {alias_problem}")
    return _CatalogueReader(path).catalogue(root)


class _NodeReader:
    """The reader of one file's YAML nodes; `free` are keys that a set may have and that emberge ignores."""

    free: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, node: yaml.Node) -> str:
        return f"{format_path(self.path)}:{node.start_mark.line + 1}"

    def error(self, node: yaml.Node, message: str) -> DataError:
        return DataError(f"{self.place(node)}: {message}")

    def mapping(self, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, "expected names with values (name: value)")
        pairs_by_name: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self.text(key)
            if name in pairs_by_name:
                raise self.error(key, f"'{name}' is written twice; keep one")
            pairs_by_name[name] = (key, value)
        return pairs_by_name

    def items(self, pair: tuple[yaml.Node, yaml.Node] | None) -> Iterator[yaml.Node]:
        if pair is None or (isinstance(pair[1], yaml.ScalarNode) and not pair[1].value):
            return
        if not isinstance(pair[1], yaml.SequenceNode):
            raise self.error(pair[1], "expected a list of sets (- name: …)")
        yield from pair[1].value

    def text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(node, "expected a text")
        return str(node.value)

    def line(self, node: yaml.Node) -> str:
        return self.text(node).strip()

    def flag(self, node: yaml.Node) -> bool:
        word = self.text(node)
        if word not in ("true", "false"):
            raise self.error(node, f"expected true or false, not '{word}'")
        return word == "true"

    def number(self, node: yaml.Node) -> float:
        word = self.text(node)
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.error(node, f"expected a number, not '{word}'")
        return number

    def weight(self, node: yaml.Node) -> float:
        number = self.number(node)
        if number <= 0:
            raise self.error(node, f"weight must be above 0, not {number:g}")
        return number

    def name(self, node: yaml.Node) -> str:
        word = self.text(node)
        if not word.strip() or not word.isprintable():
            raise self.error(node, f"a name is a word without control characters, not '{word}'")
        return word

    def count(self, node: yaml.Node) -> int:
        word = self.text(node)
        if not word.isdecimal() or len(word) > _MOST_DIGITS or not int(word):
            raise self.error(node, f"expected a whole number above 0, not '{word}'")
        return int(word)

    def require_known_keys(
        self, keys: Mapping[str, Any], names: set[str], node: yaml.Node, *, free: bool = True
    ) -> None:
        allowed = names | (self.free if free and "name" in names else frozenset())
        for name, (key, _) in keys.items():
            if name not in allowed and not name.startswith("x-"):
                hint = suggest(name, sorted(allowed)) or f"; known: {', '.join(sorted(names))}"
                raise self.error(key, f"there is no '{name}' here{hint}")

    def require_key(self, keys: Mapping[str, Any], name: str, node: yaml.Node) -> yaml.Node:
        if name not in keys:
            raise self.error(node, f"the set has no '{name}'; add it")
        value: yaml.Node = keys[name][1]
        return value

    def find_only_key(
        self, keys: Mapping[str, Any], names: tuple[str, ...], node: yaml.Node, needed: bool = True
    ) -> yaml.Node | None:
        present = [name for name in names if name in keys]
        if len(present) > 1:
            raise self.error(node, f"'{present[0]}' and '{present[1]}' say the same; keep one")
        if not present and needed:
            raise self.error(node, f"the set has no '{names[0]}'; say where it lies")
        return keys[present[0]][1] if present else None


class _CatalogueReader(_NodeReader):
    """The reader of a catalogue, which turns its nodes into entries."""

    free = FREE

    def catalogue(self, root: yaml.Node | None) -> Catalogue:
        if root is None:
            raise DataError(
                f"{format_path(self.path)}: the catalogue is empty; list sets under train or eval"
            )
        keys = self.mapping(root)
        self.require_known_keys(keys, {"train", "dev", "test", "eval", "format"}, root)
        if "format" in keys and self.text(keys["format"][1]) != "1":
            raise self.error(keys["format"][1], "this version reads catalogues of format 1")
        train, development, test = (
            tuple(self.train(node) for node in self.items(keys.get(part)))
            for part in ("train", "dev", "test")
        )
        evaluation = tuple(self.evaluation(node) for node in self.items(keys.get("eval")))
        if not train and not test and not evaluation:
            raise self.error(root, "the catalogue lists no set under train, test or eval")
        self.require_unique_names("train", train, keys)
        self.require_unique_names("dev", development, keys)
        self.require_unique_names("test", test, keys)
        self.require_unique_names("eval", evaluation, keys)
        return Catalogue(path=self.path, train=train, dev=development, test=test, eval=evaluation)

    def train(self, node: yaml.Node) -> DataEntry:
        keys = self.mapping(node)
        self.require_known_keys(keys, {*_TRAIN_READERS, "path", "file", "columns", "name"}, node)
        options = {
            key: read(self, keys[key][1]) for key, read in _TRAIN_READERS.items() if key in keys
        }
        where = self.find_only_key(keys, ("path", "file"), node, needed="hub" not in keys)
        if where is not None and "hub" in keys:
            raise self.error(node, "a set has a path or a hub id, not both")
        if where is not None:
            options["path"] = DataRef(str(self.resolve_path(where)))
            if "documents" in keys:
                options["documents"] = str(self.resolve_path(keys["documents"][1]))
        if "columns" in keys:
            options["columns"] = self.columns(keys["columns"][1])
        options["source"] = self.origin(keys)
        return DataEntry(name=self.name(self.require_key(keys, "name", node)), **options)

    def evaluation(self, node: yaml.Node) -> EvalSet:
        keys = self.mapping(node)
        self.require_known_keys(
            keys, {*_EVAL_READERS, "task", "path", "dir", "folder", "name"}, node
        )
        options = {
            key: read(self, keys[key][1]) for key, read in _EVAL_READERS.items() if key in keys
        }
        options.setdefault("prompt", instruction_prompt(options.get("instruction", "")))
        options["task"] = self.task(self.require_key(keys, "task", node))
        if options["task"] == "text":
            raise self.error(
                keys["task"][1], "single texts cannot be scored; list them under train"
            )
        options.setdefault("symmetric", options["task"] not in ("retrieval", "reranking"))
        where = self.find_only_key(keys, ("dir", "folder", "path"), node)
        assert where is not None
        return EvalSet(
            name=self.name(self.require_key(keys, "name", node)),
            folder=self.resolve_path(where),
            where=self.place(node),
            **options,
        )

    def origin(self, keys: Mapping[str, tuple[yaml.Node, yaml.Node]]) -> DataOrigin:
        """Return the stated facts of a set's source; `unknown` stands for a fact that is not stated."""
        stated = {}
        if "source" in keys and isinstance(keys["source"][1], yaml.MappingNode):
            stated = self.mapping(keys["source"][1])
            self.require_well_spelt(stated)
        beside_name = {key: keys[key] for key in _LICENCE_KEYS if key in keys}
        licences = beside_name or {key: stated[key] for key in _LICENCE_KEYS if key in stated}
        facts = dict(stated)
        if licences:
            facts["licence"] = next(iter(licences.values()))
        return DataOrigin(
            **{
                name: read(self, facts[name][1])
                for name, read in _ORIGIN_READERS.items()
                if name in facts and not self.is_unknown(facts[name][1])
            }
        )

    def require_well_spelt(self, facts: Mapping[str, tuple[yaml.Node, yaml.Node]]) -> None:
        """Refuse further facts of a source whose names are nearly those of facts that are read."""
        known = (*_ORIGIN_READERS, *_LICENCE_KEYS)
        for name, (node, _) in facts.items():
            near_name = closest_word(name, known)
            if name not in known and near_name is not None and not name.startswith("x-"):
                raise self.error(
                    node,
                    f"a source has no fact '{name}'; did you mean '{near_name}'? A fact of your own may "
                    f"be named 'x-{name}'",
                )

    def is_unknown(self, node: yaml.Node) -> bool:
        return isinstance(node, yaml.ScalarNode) and node.value.strip() in _UNKNOWN

    def task(self, node: yaml.Node) -> Any:
        word = self.text(node)
        if word not in TASK_KINDS:
            hint = suggest(word, TASK_KINDS) or f"; known: {', '.join(TASK_KINDS)}"
            raise self.error(node, f"there is no task '{word}'{hint}")
        return word

    def domain(self, node: yaml.Node) -> Any:
        word = self.text(node)
        if word not in get_args(Domain):
            raise self.error(node, f"domain is 'in', 'out' or 'elsewhere', not '{word}'")
        return word

    def negatives(self, node: yaml.Node) -> Any:
        word = self.text(node)
        if word not in ("auto", "in_batch", "hard_only"):
            raise self.error(node, f"negatives are auto, in_batch or hard_only, not '{word}'")
        return word

    def names(self, node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(node, "expected a list of names ([first, second])")
        return tuple(self.text(item) for item in node.value)

    def score_range(self, node: yaml.Node) -> tuple[float, float]:
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        bounds = [self.number(item) for item in items]
        if len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise self.error(node, "score_range is [lowest, highest]")
        return bounds[0], bounds[1]

    def columns(self, node: yaml.Node) -> Columns:
        keys = self.mapping(node)
        self.require_known_keys(
            keys, {"anchor", "positive", "negative", "score", "label"}, node, free=False
        )
        return Columns(**{key: self.text(value) for key, (_, value) in keys.items()})

    def resolve_path(self, node: yaml.Node) -> Path:
        return self.path.parent / self.text(node)

    def require_unique_names(
        self, kind: str, sets: tuple[DataEntry, ...] | tuple[EvalSet, ...], keys: Mapping[str, Any]
    ) -> None:
        names = [entry.name for entry in sets]
        for i, name in enumerate(names):
            if name in names[:i]:
                node = keys[kind][1].value[i]
                raise self.error(node, f"two sets under {kind} are named '{name}'; rename one")


_TRAIN_READERS: Mapping[str, Callable[[_CatalogueReader, yaml.Node], Any]] = {
    "hub": _CatalogueReader.text,
    "subset": _CatalogueReader.text,
    "folder": _CatalogueReader.text,
    "documents": _CatalogueReader.text,
    "split": _CatalogueReader.text,
    "revision": _CatalogueReader.text,
    "task": _CatalogueReader.task,
    "instruction": _CatalogueReader.text,
    "prompt": _CatalogueReader.text,
    "symmetric": _CatalogueReader.flag,
    "weight": _CatalogueReader.weight,
    "limit": _CatalogueReader.count,
    "first": _CatalogueReader.count,
    "score_range": _CatalogueReader.score_range,
    "negatives": _CatalogueReader.negatives,
    "ind_tasks": _CatalogueReader.names,
    "language": _CatalogueReader.text,
}
_ORIGIN_READERS: Mapping[str, Callable[[_CatalogueReader, yaml.Node], Any]] = {
    "licence": _CatalogueReader.line,
    "url": _CatalogueReader.line,
    "written_by": _CatalogueReader.names,
    "scored_by": _CatalogueReader.names,
}
_EVAL_READERS: Mapping[str, Callable[[_CatalogueReader, yaml.Node], Any]] = {
    "language": _CatalogueReader.text,
    "symmetric": _CatalogueReader.flag,
    "domain": _CatalogueReader.domain,
    "metric": _CatalogueReader.text,
    "instruction": _CatalogueReader.text,
    "prompt": _CatalogueReader.text,
    "score_range": _CatalogueReader.score_range,
}
