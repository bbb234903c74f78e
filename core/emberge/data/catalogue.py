"""Catalogues (`datasets.yaml`): which sets there are, where they lie, what they are for.

A catalogue is a mapping with `train` and `eval`, lists of sets; paths are relative to it. What is said of
a set beyond what emberge reads (source, licence, counts, …) may stand under the names of `FREE` and under
names that begin with `x-`; any other name is an error, so that a misspelt one is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from emberge.contracts.dataset import TASK_KINDS
from emberge.contracts.reference import DataRef
from emberge.data.entry import Catalogue, Columns, DataEntry, EvalSet
from emberge.data.file_summary import shown
from emberge.data.nodes import Nodes
from emberge.errors import DataError, suggest

__all__ = ["FREE", "INSTRUCTION", "instruction_prompt", "load_catalogue"]

FREE = frozenset(
    {
        *("source", "licence", "license", "url", "homepage", "citation", "description", "notes"),
        *("rows", "n", "scores", "labels", "corpus", "queries", "qrels", "language", "category"),
        *("domain", "metric", "baseline", "distance"),
    }
)
# How an instruction stands before a query (Wang et al., 2024, arXiv:2401.00368).
INSTRUCTION = "Instruct: {instruction}\nQuery: "


def instruction_prompt(instruction: str) -> str:
    """The prompt that an instruction makes; none for an empty one."""
    return INSTRUCTION.format(instruction=instruction) if instruction.strip() else ""


def load_catalogue(path: Path) -> Catalogue:
    """Read a catalogue, given its file or the folder in which it is called `datasets.yaml`.

    Raises:
        DataError: naming file and line, for what is missing, misspelt or of the wrong kind.
    """
    path = Path(path)
    path = path / "datasets.yaml" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{shown(path)}: there is no such catalogue ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{shown(path)}: the catalogue is not UTF-8 text; save it as such"
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DataError(f"{shown(path)}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{shown(path)}: not YAML: {error}") from None
    return _Reading(path).catalogue(root)


class _Reading(Nodes):
    """Turns the nodes of a catalogue into entries."""

    free = FREE

    def catalogue(self, root: yaml.Node | None) -> Catalogue:
        if root is None:
            raise DataError(
                f"{shown(self.path)}: the catalogue is empty; list sets under train or eval"
            )
        keys = self.mapping(root)
        self.known(keys, {"train", "eval", "format"}, root)
        if "format" in keys and self.text(keys["format"][1]) != "1":
            raise self.error(keys["format"][1], "this version reads catalogues of format 1")
        train = tuple(self.train(node) for node in self.items(keys.get("train")))
        evaluation = tuple(self.evaluation(node) for node in self.items(keys.get("eval")))
        if not train and not evaluation:
            raise self.error(root, "the catalogue lists no set under train or eval")
        self.unique("train", train, keys)
        self.unique("eval", evaluation, keys)
        return Catalogue(path=self.path, train=train, eval=evaluation)

    def train(self, node: yaml.Node) -> DataEntry:
        keys = self.mapping(node)
        self.known(keys, {*_TRAIN, "path", "file", "columns", "name"}, node)
        options = {key: read(self, keys[key][1]) for key, read in _TRAIN.items() if key in keys}
        where = self.one_of(keys, ("path", "file"), node, needed="hub" not in keys)
        if where is not None and "hub" in keys:
            raise self.error(node, "a set has a path or a hub id, not both")
        if where is not None:
            options["path"] = DataRef(str(self.beside(where)))
        if "columns" in keys:
            options["columns"] = self.columns(keys["columns"][1])
        return DataEntry(name=self.text(self.need(keys, "name", node)), **options)

    def evaluation(self, node: yaml.Node) -> EvalSet:
        keys = self.mapping(node)
        self.known(keys, {*_EVAL, "task", "path", "dir", "folder", "name"}, node)
        options = {key: read(self, keys[key][1]) for key, read in _EVAL.items() if key in keys}
        options.setdefault("prompt", instruction_prompt(options.get("instruction", "")))
        options["task"] = self.task(self.need(keys, "task", node))
        options.setdefault("symmetric", options["task"] not in ("retrieval", "reranking"))
        where = self.one_of(keys, ("dir", "folder", "path"), node)
        assert where is not None
        return EvalSet(
            name=self.text(self.need(keys, "name", node)),
            folder=self.beside(where),
            where=self.place(node),
            **options,
        )

    def task(self, node: yaml.Node) -> Any:
        word = self.text(node)
        if word not in TASK_KINDS:
            hint = suggest(word, TASK_KINDS) or f"; known: {', '.join(TASK_KINDS)}"
            raise self.error(node, f"there is no task '{word}'{hint}")
        return word

    def domain(self, node: yaml.Node) -> Any:
        word = self.text(node)
        if word not in ("in", "out"):
            raise self.error(node, f"domain is 'in' or 'out', not '{word}'")
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
        numbers = [self.number(item) for item in items]
        if len(numbers) != 2 or not numbers[0] < numbers[1]:
            raise self.error(node, "score_range is [lowest, highest]")
        return numbers[0], numbers[1]

    def columns(self, node: yaml.Node) -> Columns:
        keys = self.mapping(node)
        self.known(keys, {"anchor", "positive", "negative", "score", "label"}, node, free=False)
        return Columns(**{key: self.text(value) for key, (_, value) in keys.items()})

    def beside(self, node: yaml.Node) -> Path:
        return self.path.parent / self.text(node)

    def unique(
        self, kind: str, sets: tuple[DataEntry, ...] | tuple[EvalSet, ...], keys: Mapping[str, Any]
    ) -> None:
        names = [entry.name for entry in sets]
        for i, name in enumerate(names):
            if name in names[:i]:
                node = keys[kind][1].value[i]
                raise self.error(node, f"two sets under {kind} are named '{name}'; rename one")


_TRAIN: Mapping[str, Callable[[_Reading, yaml.Node], Any]] = {
    "hub": _Reading.text,
    "subset": _Reading.text,
    "split": _Reading.text,
    "revision": _Reading.text,
    "task": _Reading.task,
    "instruction": _Reading.text,
    "prompt": _Reading.text,
    "symmetric": _Reading.flag,
    "weight": _Reading.number,
    "limit": _Reading.count,
    "score_range": _Reading.score_range,
    "negatives": _Reading.negatives,
    "ind_tasks": _Reading.names,
}
_EVAL: Mapping[str, Callable[[_Reading, yaml.Node], Any]] = {
    "language": _Reading.text,
    "symmetric": _Reading.flag,
    "domain": _Reading.domain,
    "metric": _Reading.text,
    "instruction": _Reading.text,
    "prompt": _Reading.text,
    "score_range": _Reading.score_range,
}
