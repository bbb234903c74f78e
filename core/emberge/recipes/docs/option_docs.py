"""The options of a component with what is known of them: type in words, default, documentation.

How an author documents an option, nearest first:

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
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from emberge.contracts.option import PerDataset
from emberge.contracts.reference import Reference
from emberge.contracts.schedule import PerTensor
from emberge.contracts.stage import ChainSpec
from emberge.plugins import Component, Plugins
from emberge.recipes.options.field_types import Form
from emberge.recipes.options.fields import Option, options_of
from emberge.recipes.options.phrases import say

__all__ = ["Documented", "documented_options", "option_doc", "plain_default"]


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
        """Whether a recipe must give it."""
        return self.default is MISSING

    @property
    def type(self) -> str:
        """What it takes, in words."""
        return say(self.form)


def documented_options(component: Component | type, plugins: Plugins) -> list[Documented]:
    """A component's options, required ones first, then its own; a chain has the union of its links'.

    Raises:
        PluginError: for an option whose type cannot be found or said in a recipe.
    """
    owner = component.type if isinstance(component, Component) else component
    if not isinstance(owner, ChainSpec):
        return _required_first([_documented(option, owner, plugins) for option in _sorted(owner)])
    found: dict[str, Documented] = {}
    for link in owner.links:
        for option in _sorted(link):
            one = _documented(option, link, plugins)
            if option.name in owner.defaults:
                default = plain_default(owner.defaults[option.name], plugins)
                one = dataclasses.replace(one, default=default)
            found.setdefault(option.name, one)
    return list(found.values())


def _sorted(owner: type) -> list[Option]:
    """Options as they are declared, those that the class adds before those it inherits."""
    depth = {one: index for index, one in enumerate(owner.__mro__)}
    return sorted(options_of(owner).values(), key=lambda option: depth[option.owner])


def _required_first(options: list[Documented]) -> list[Documented]:
    return sorted(options, key=lambda option: not option.required)


def _documented(option: Option, owner: type, plugins: Plugins) -> Documented:
    default: Any = MISSING
    if option.component is not None:
        default = plain_default(option.component, plugins)
    elif not option.required:
        default = plain_default(option.default, plugins)
    within = option.default.within if isinstance(option.default, PerTensor) else None
    return Documented(option.name, option.form, default, option_doc(owner, option.name), within)


# ── defaults ────────────────────────────────────────────────────────────────────────────────────


def plain_default(value: Any, plugins: Plugins) -> Any:
    """A default as a recipe would say it: numbers, words, lists and mappings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PerTensor):
        return value.plain()
    if isinstance(value, Reference | Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain_default(inner, plugins) for key, inner in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain_default(inner, plugins) for inner in value]
    return _plain_dataclass(value, plugins) if dataclasses.is_dataclass(value) else str(value)


def _plain_dataclass(value: Any, plugins: Plugins) -> Any:
    options = {
        name: plain_default(getattr(value, name), plugins)
        for name, option in options_of(type(value)).items()
        if option.required or getattr(value, name) != option.default
    }
    if isinstance(value, PerDataset):
        return options["default"] if set(options) == {"default"} else options or None
    for component in plugins.components:
        if component.type is type(value):
            return {component.name: options} if options else component.name
    return options


# ── documentation ───────────────────────────────────────────────────────────────────────────────


def option_doc(owner: type, name: str) -> str:
    """What is written of an option, nothing if its author wrote nothing."""
    for one in owner.__mro__:
        doc = _below_field(one).get(name) or _in_docstring(vars(one).get("__doc__") or "", name)
        if doc:
            return doc
    return ""


@functools.cache
def _below_field(owner: Any) -> Mapping[str, str]:
    """The string literals right below the fields of a class."""
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(owner)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, below in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = below.value.value
            if isinstance(text, str):
                found[field.target.id] = " ".join(text.split())
    return found


def _in_docstring(text: str, name: str) -> str:
    """The first sentence that names the option in backticks, best one that begins with it."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    sentences = [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.;])\s+", " ".join(paragraph.split()))
    ]
    naming = [one for one in sentences if re.search(rf"`{re.escape(name)}(`|:)", one)]
    naming.sort(key=lambda one: not one.startswith(f"`{name}"))
    if not naming:
        return ""
    return naming[0].removesuffix(";").removesuffix(".") + "."
