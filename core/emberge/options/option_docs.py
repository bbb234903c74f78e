"""The options of a component with their documentation: type in words, default, description.

An author documents an option in one of these ways; the first that exists is used:

* a string literal right below the field;
* a sentence of the class's docstring that begins with it, in backticks: "`density` is the share kept.";
* either of these in the class that the field is inherited from, up to the contract;
* a sentence of these docstrings that names it elsewhere.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, replace
from types import ModuleType
from typing import Any

from emberge.component_parts import convert_parts
from emberge.contracts import ChainSpec, PerDataset, PerTensor, Reference
from emberge.errors import PluginError
from emberge.options.forms import Option, read_options
from emberge.plugins import Component, Plugins


def document_options(component: Component | type, plugins: Plugins) -> list[Option]:
    """Return a component's options, required ones first, then its own; a chain has its links' options.

    The options have their documentation, and their defaults as a recipe would write them.

    Raises:
        PluginError: if an option's type cannot be found or expressed in a recipe.
    """
    owner = component.type if isinstance(component, Component) else component
    if not isinstance(owner, ChainSpec):
        options = [
            _document_option(option, owner, plugins) for option in read_options(owner).values()
        ]
        return sorted(options, key=lambda option: not option.required)
    by_name: dict[str, Option] = {}
    for link in owner.links:
        for option in read_options(link).values():
            set_option = replace(option, default=owner.defaults.get(option.name, option.default))
            by_name.setdefault(option.name, _document_option(set_option, link, plugins))
    return list(by_name.values())


def _document_option(option: Option, owner: type, plugins: Plugins) -> Option:
    default = option.default if option.component is None else option.component
    if default is not MISSING:
        default = write_value(default, plugins)
    return replace(option, default=default, doc=find_option_doc(owner, option.name))


def write_value(value: Any, plugins: Plugins) -> Any:
    """Return an option's value as a recipe would write it: numbers, words, lists and mappings."""

    def record(item: Any, inner: Callable[[Any], Any]) -> Any:
        options = {
            name: inner(getattr(item, name))
            for name, option in read_options(type(item)).items()
            if option.required or getattr(item, name) != option.default
        }
        if isinstance(item, PerDataset):
            return options["default"] if set(options) == {"default"} else options or None
        with suppress(PluginError):  # a record is no component
            name = plugins.find_component(type(item)).name
            return {name: options} if options else name
        return options

    return convert_parts(value, _convert_leaf, record, (Reference,))


def _convert_leaf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, PerTensor):
        return value.plain()
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def find_option_doc(owner: type, name: str) -> str:
    """Return the documentation of an option, "" if its author wrote none."""
    mentions: list[str] = []
    for class_ in owner.__mro__:
        module = sys.modules.get(class_.__module__)
        docs = _read_module_docs(module).get(class_.__name__, {}) if module else {}
        doc = docs.get(name) or _find_in_docstring(vars(class_).get("__doc__") or "", name)
        if doc and (name in docs or doc.startswith(f"`{name}")):
            return doc
        mentions.append(doc)
    return next(filter(None, mentions), "")


@functools.cache
def _read_module_docs(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    """Map the classes of a module to their fields' string literals: a file is parsed once."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return {}
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {class_.name: _read_body_docs(class_.body) for class_ in classes}


def _read_body_docs(body: Sequence[ast.stmt]) -> Mapping[str, str]:
    docs: dict[str, str] = {}
    for pair in itertools.pairwise(body):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


def _find_in_docstring(text: str, name: str) -> str:
    """Return the first sentence that names the option in backticks, preferably at its beginning."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    sentences = [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.;])\s+", " ".join(paragraph.split()))
        if re.search(rf"`{re.escape(name)}(`|:)", sentence)
    ]
    sentences.sort(key=lambda sentence: not sentence.startswith(f"`{name}"))
    return sentences[0].removesuffix(";").removesuffix(".") + "." if sentences else ""
