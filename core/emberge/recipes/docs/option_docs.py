"""The options of a component with their documentation: type in words, default, description.

An author documents an option in one of these ways; the first that exists is used:

* a string literal right below the field;
* a sentence of the class's docstring that names it in backticks, as in "`density` is the share kept.";
* either of these in the class that the field is inherited from, up to the contract.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from types import ModuleType
from typing import Any

from emberge.contracts import ChainSpec, PerDataset, PerTensor, Reference
from emberge.plugins import Component, Plugins
from emberge.recipes.options.option_forms import Form, Option, options_of
from emberge.recipes.options.phrases import describe_form
from emberge.recipes.recipe import to_plain


@dataclass(frozen=True)
class Documented:
    """One option as documentation shows it; `default` is plain data, MISSING for a required option."""

    name: str
    form: Form
    default: Any
    doc: str
    within: tuple[float, float] | None = None

    @property
    def required(self) -> bool:
        """True if a recipe must give the option."""
        return self.default is MISSING

    @property
    def type(self) -> str:
        """The values that the option accepts, in words."""
        return describe_form(self.form)


def document_options(component: Component | type, plugins: Plugins) -> list[Documented]:
    """Return a component's options, required ones first, then its own; a chain has its links' options.

    Raises:
        PluginError: if an option's type cannot be found or expressed in a recipe.
    """
    owner = component.type if isinstance(component, Component) else component
    if not isinstance(owner, ChainSpec):
        return _put_required_first(
            [_document_option(option, owner, plugins) for option in _sort_options(owner)]
        )
    by_name: dict[str, Documented] = {}
    for link in owner.links:
        for option in _sort_options(link):
            documented = _document_option(option, link, plugins)
            if option.name in owner.defaults:
                default = plain_default(owner.defaults[option.name], plugins)
                documented = dataclasses.replace(documented, default=default)
            by_name.setdefault(option.name, documented)
    return list(by_name.values())


def _sort_options(owner: type) -> list[Option]:
    """Return options in the order of their declaration, the class's own options before inherited options."""
    depth = {class_: index for index, class_ in enumerate(owner.__mro__)}
    return sorted(options_of(owner).values(), key=lambda option: depth[option.owner])


def _put_required_first(options: list[Documented]) -> list[Documented]:
    return sorted(options, key=lambda option: not option.required)


def _document_option(option: Option, owner: type, plugins: Plugins) -> Documented:
    default: Any = MISSING
    if option.component is not None:
        default = plain_default(option.component, plugins)
    elif not option.required:
        default = plain_default(option.default, plugins)
    limits = option.default.within if isinstance(option.default, PerTensor) else None
    return Documented(
        option.name, option.form, default, find_option_doc(owner, option.name), limits
    )


# ── defaults ────────────────────────────────────────────────────────────────────────────────────


def plain_default(value: Any, plugins: Plugins) -> Any:
    """Return a default as a recipe would write it: numbers, words, lists and mappings."""

    def record(item: Any, inner: Callable[[Any], Any]) -> Any:
        options = {
            name: inner(getattr(item, name))
            for name, option in options_of(type(item)).items()
            if option.required or getattr(item, name) != option.default
        }
        if isinstance(item, PerDataset):
            return options["default"] if set(options) == {"default"} else options or None
        for component in plugins.components:
            if component.type is type(item):
                return {component.name: options} if options else component.name
        return options

    return to_plain(value, _convert_leaf, record, (Reference,))


def _convert_leaf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, PerTensor):
        return value.plain()
    return value if isinstance(value, bool | int | float | str | None) else str(value)


# ── documentation ───────────────────────────────────────────────────────────────────────────────


def find_option_doc(owner: type, name: str) -> str:
    """Return the documentation of an option, "" if its author wrote none."""
    for class_ in owner.__mro__:
        doc = _read_field_docs(class_).get(name) or _find_in_docstring(
            vars(class_).get("__doc__") or "", name
        )
        if doc:
            return doc
    return ""


def _read_field_docs(owner: type) -> Mapping[str, str]:
    """Map the fields of a class to the string literals right below them."""
    module = sys.modules.get(owner.__module__)
    return _read_module_docs(module).get(owner.__qualname__, {}) if module else {}


@functools.cache
def _read_module_docs(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    """Map the classes of a module, by qualified names, to the docs of their fields: a file is parsed once."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return {}
    return dict(_walk_classes(tree, ""))


def _walk_classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the qualified name of each class below a node, and the docs of its fields."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, _read_body_docs(child.body)
            yield from _walk_classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk_classes(child, f"{prefix}{child.name}.<locals>.")
        elif not isinstance(child, ast.expr):  # no class stands in an expression
            yield from _walk_classes(child, prefix)


def _read_body_docs(body: Sequence[ast.stmt]) -> Mapping[str, str]:
    docs: dict[str, str] = {}
    for field, statement_below in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(statement_below, ast.Expr) and isinstance(
            statement_below.value, ast.Constant
        ):
            text = statement_below.value.value
            if isinstance(text, str):
                docs[field.target.id] = " ".join(text.split())
    return docs


def _find_in_docstring(text: str, name: str) -> str:
    """Return the first sentence that names the option in backticks, preferably at its beginning."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    sentences = [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.;])\s+", " ".join(paragraph.split()))
    ]
    matching_sentences = [
        text_part for text_part in sentences if re.search(rf"`{re.escape(name)}(`|:)", text_part)
    ]
    matching_sentences.sort(key=lambda text_part: not text_part.startswith(f"`{name}"))
    if not matching_sentences:
        return ""
    return matching_sentences[0].removesuffix(";").removesuffix(".") + "."
