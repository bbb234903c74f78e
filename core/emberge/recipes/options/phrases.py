"""Descriptions of forms in words, for messages, tables and documentation."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from emberge.contracts import PerModel, limits_of
from emberge.recipes.options import option_forms as forms
from emberge.recipes.options.option_forms import Form, kinds_of, options_of

_SCALARS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def describe_form(form: Form) -> str:
    """Describe the values of a form: "a number", "one of a, b", "a model or nothing"."""
    match form:
        case forms.Choice(values):
            return "one of " + ", ".join(str(value) for value in values)
        case forms.Ref(kind):
            return _describe_reference(kind.accepts)
        case forms.Part(contracts) | forms.Parts(contracts):
            return _describe_component(form, contracts)
        case _:
            return _describe_container(form) if hasattr(form, "item") else _describe_leaf(form)


def _describe_leaf(form: Form) -> str:
    match form:
        case forms.Value(kind):
            return _describe_value(kind)
        case forms.Schedule(kind):
            varies = (
                "over depth, tensors or models" if kind is PerModel else "over depth or tensors"
            )
            return f"a number that may vary {varies}"
        case forms.Record(kind):
            return f"a mapping ({', '.join(options_of(kind))})"
        case forms.Fixed(items):
            return f"a list of {len(items)} ({', '.join(describe_form(item) for item in items)})"
        case forms.Either(choices):
            return " or ".join(describe_form(choice) for choice in choices)
        case _:
            return "a path" if isinstance(form, forms.Folder) else "any plain value"


def _describe_container(form: Any) -> str:
    words = {
        forms.Many: "{}, or a list of such",
        forms.Table: "a mapping of names to {}",
        forms.ByData: "{}, which may differ by task or dataset",
        forms.Maybe: "{} or nothing",
    }
    return words[type(form)].format(describe_form(form.item))


def _describe_value(kind: Any) -> str:
    limits = limits_of(kind)
    limits_text = f" {limits.words()}" if limits and limits.words() else ""
    if get_origin(kind) is not None and hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    return _SCALARS.get(kind, f"a {getattr(kind, '__name__', kind)}") + limits_text


def _describe_reference(accepts: tuple[str, ...]) -> str:
    if {"scores", "report"} <= set(accepts):
        return "an earlier step"
    return " or ".join(article(word) for word in accepts)


def article(word: str) -> str:
    """Return the word with "a" or "an" before it, if it takes one: "an evaluator", "data"."""
    if word in ("data", "scores", "statistics"):
        return word
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _describe_component(form: Form, contracts: tuple[type, ...]) -> str:
    kinds = kinds_of(contracts)
    stage = len(kinds) > 1
    if isinstance(form, forms.Part):
        return article("merge stage" if stage else kinds[0])
    if form.chain:  # type: ignore[union-attr]
        return "a merge strategy or a chain that ends with one"
    phrases_by_kind = {
        "sampler": "a sampler or a chain of them",
        "loss": "a loss or a list of them, summed",
    }
    return phrases_by_kind.get(kinds[0], f"one or more {kinds[0]}s")
