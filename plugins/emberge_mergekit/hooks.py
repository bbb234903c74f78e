"""mergekit's configs as recipes, and its own merge methods as a strategy; the only importer of mergekit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from emberge import hookimpl
from emberge.contracts import TranslatedRecipe

# The first key of an emberge recipe at the start of a line, in a text of one document.
_STEPS = re.compile(r"\A(?!.*^---).*^steps[ \t]*:", re.MULTILINE | re.DOTALL)


@hookimpl
def read_recipe(text: str, path: Path | None) -> TranslatedRecipe | None:
    if _STEPS.search(text):  # one of ours, whose reader need not wait for the translator's import
        return None
    from emberge_mergekit.translate import translate

    return translate(text, path)


@hookimpl
def register_merge_strategies() -> Mapping[str, str]:
    return {"mergekit": "emberge_mergekit.strategy:Mergekit"}
