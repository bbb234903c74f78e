"""Translation of a mergekit YAML into a recipe."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Plugins, Problem, RecipeError, suggest
from emberge.recipes import read_recipe_text

from emberge_mergekit.config import SHAPE_KEYS, Config, is_config, read_config, read_document
from emberge_mergekit.equivalents import Link
from emberge_mergekit.library import find_method, list_methods
from emberge_mergekit.planning import PlannedMerge, PlannedModel, plan_sources
from emberge_mergekit.settings import Entry

if TYPE_CHECKING:
    from mergekit.common import ModelPath, ModelReference

# Words that need no quotes: they are neither numbers nor truth values and open nothing.
_PLAIN_WORD = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off)\Z)[A-Za-z_./][\w./@:+$-]*(?<!:)", re.I
)


def run_verb(options: argparse.Namespace, _: Plugins) -> int:
    """Print the recipe that means the same as a config: the verb `convert`.

    Raises:
        RecipeError: if the file cannot be read, or is no config.
    """
    path = options.config
    translated = translate(read_recipe_text(path), path)
    if translated is None:
        raise RecipeError(f"{path} is no config of mergekit")
    print(translated.rstrip("\n"))
    return 0


def translate(text: str, path: Path | None) -> str | None:
    """Translate a config into a recipe's text; None for a text that is not a mergekit config.

    Raises:
        RecipeError: if the config has problems; the message has all of them, each with `path:line`.
    """
    if not any(f"{key}:" in text or f'{key}"' in text for key in ("merge_method", *SHAPE_KEYS)):
        return None
    document, problems = read_document(text, path)
    is_read = document is not None and is_config(document)
    if not is_read and not re.search(r"^merge_method\s*:", text, re.M):
        return None
    config, merge = None, None
    if document is not None:
        config, config_problems = read_config(document)
        problems += config_problems
    if config is not None:
        merge, merge_problems = _plan(config)
        problems += merge_problems
    if problems or config is None or merge is None:
        by_line = sorted(problems, key=lambda problem: int(problem.where.rpartition(":")[2]))
        raise RecipeError(dict.fromkeys(by_line))
    writer = _RecipeWriter(path)
    writer.write_merge(config, merge)
    return "".join(f"{line}\n" for line in writer.lines)


def _plan(config: Config) -> tuple[PlannedMerge | None, list[Problem]]:
    """Return (merge of a config or None, problems)."""
    name, place = config.content.merge_method, config.place.at("merge_method")
    method = find_method(name)
    if method is None:
        names = list_methods()
        hint = suggest(name, names) or f"; there are {', '.join(names)}"
        return None, [Problem(f"there is no merge method '{name}'{hint}", place.where)]
    merge, problems = None, list[Problem]()
    if config.merged is not None:
        merge, problems = plan_sources(config.merged, method)
    if _find_tokenizer(config) == "base" and config.content.base_model is None:
        problems.append(Problem("the tokenizer is the base's, and there is none", place.where))
    return merge, problems


def _find_tokenizer(config: Config) -> str | ModelReference | None:
    """Return "union", "base" or a model; None if the config does not choose a tokenizer."""
    content = config.content
    source: str | ModelReference | None = content.tokenizer_source
    return content.tokenizer.source if content.tokenizer is not None else source


class _RecipeWriter:
    """Writer of a recipe's `lines`.

    mergekit reads a name as a folder if that folder exists in the current folder, and as a hub id otherwise.
    A recipe's folders are relative to the recipe.
    """

    def __init__(self, path: Path | None) -> None:
        name = path.name if path is not None else "a config"
        self.lines = [f"# From {name}, a config of mergekit.", "steps:"]
        self._folder = path.parent if path is not None else Path()

    def _add(self, depth: int, text: str) -> None:
        """Add a line, indented by two spaces per level."""
        self.lines.append("  " * depth + text)

    def write_merge(self, config: Config, merge: PlannedMerge) -> None:
        """Write the step of the config."""
        self._add(1, "merged:")
        self._add(2, "merge:")
        self._add(3, "models:")
        for model in merge.models:
            self._add(4, f"- {self._format_model(model)}")
        if merge.base is not None:
            self._add(3, f"base: {self._refer_to(merge.base.model)}")
        if merge.layers is not None:
            self._add(3, f"layers: {merge.layers}")
        self._write_tokenizer(config)
        for note in dict.fromkeys(merge.notes):
            self._add(3, f"# {note}")
        self._write_strategy(merge.links)
        self._write_dtypes(config)

    def _write_strategy(self, links: Sequence[Link]) -> None:
        """Write `strategy:` and its links, one option per line."""
        if len(links) == 1 and not links[0].options:
            self._add(3, f"strategy: {links[0].name}")
            return
        self._add(3, "strategy:")
        for link in links:
            dash = "- " if len(links) > 1 else ""
            self._add(4, f"{dash}{link.name}{':' if link.options else ''}")
            for name, value in link.options.items():
                self._add(6 if dash else 5, f"{name}: {_format_flow(value)}")

    def _write_tokenizer(self, config: Config) -> None:
        source, content = _find_tokenizer(config), config.content
        if source == "union":
            self._add(3, "# a token that a model lacks takes the weighted mean of the others' rows")
            self._add(3, "vocabulary: {policy: union, pad_to: 1}")
        elif source is not None:
            model = content.base_model if source == "base" else source
            self._add(3, "# a token with another id in a model is not taken from that model")
            self._add(3, f"tokenizer: {self._refer_to(model)}")

    def _write_dtypes(self, config: Config) -> None:
        content = config.content
        dtype, out_dtype = (
            text and text.removeprefix("torch.") for text in (content.dtype, content.out_dtype)
        )
        if dtype in ("bfloat16", "float16"):
            self._add(3, f"# mergekit computes in {dtype}; here it is rounded to only once")
        if dtype == "float64":
            self._add(3, "dtype: float64")
        if out_dtype or dtype:
            self._add(3, f"out_dtype: {out_dtype or dtype}")

    def _format_model(self, model: PlannedModel) -> str:
        entries = [f"model: {self._refer_to(model.source.model)}"]
        if model.weight:
            entries.append(f"weight: {_format_flow(model.weight)}")
        if model.options:
            entries.append(f"options: {_format_flow(model.options)}")
        return f"{{{', '.join(entries)}}}" if entries[1:] else entries[0].removeprefix("model: ")

    def _refer_to(self, model: ModelReference) -> str:
        """Return a recipe's reference to a model, with its adapter."""
        paths = [path for path in (model.model, model.lora) if path is not None]
        return _quote("+".join(map(self._refer_to_path, paths)))

    def _refer_to_path(self, model: ModelPath) -> str:
        """Return `./folder` or `owner/name@revision` for mergekit's name of a model."""
        path, revision = model.path, f"@{model.revision}" if model.revision else ""
        if (self._folder / path).is_dir() and not path.startswith(("/", "./", "../")):
            path = f"./{path}"
        elif Path(path).is_dir() and not (self._folder / path).is_dir():
            path = str(Path(path).absolute())
        return f"{path}{revision}".replace("$", "$$")


def _format_flow(value: Any) -> str:
    """Return a value as one line of YAML, with each `$` of a text doubled as recipes require.

    A setting becomes a value or a list of `{filter, value}`.
    """
    if isinstance(value, tuple) and value and isinstance(value[0], Entry):
        if len(value) == 1 and value[0].covers_all:
            return _format_flow(value[0].value)
        return _format_flow(
            [{**({} if e.covers_all else {"filter": e.filter}), "value": e.value} for e in value]
        )
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_quote(str(k))}: {_format_flow(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_flow, value)) + "]"
    return _quote(value.replace("$", "$$")) if isinstance(value, str) else json.dumps(value)


def _quote(text: str) -> str:
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)
