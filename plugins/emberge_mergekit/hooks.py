"""mergekit's configs as recipes, and its own merge methods as a strategy; the only importer of mergekit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emberge import hookimpl
from emberge.contracts import TranslatedRecipe


@hookimpl
def read_recipe(text: str, path: Path | None) -> TranslatedRecipe | None:
    from emberge_mergekit.recipe.translate import translate

    return translate(text, path)


@hookimpl
def register_merge_strategies() -> Mapping[str, str]:
    return {"mergekit": "emberge_mergekit.strategy:Mergekit"}


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"mergekit_vocabulary": "emberge_mergekit.recipe.vocabulary:MergekitVocabulary"}
