"""mergekit's configs as recipes, and its own merge methods as a strategy; the only importer of mergekit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emberge import MergeStrategy, Step, TranslatedRecipe, hookimpl


@hookimpl
def read_recipe(text: str, path: Path | None) -> TranslatedRecipe | None:
    from emberge_mergekit.recipe.translate import translate

    return translate(text, path)


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy]]:
    from emberge_mergekit.library.strategy import Mergekit

    return {"mergekit": Mergekit}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_mergekit.recipe.vocabulary import MergekitVocabulary

    return {"mergekit_vocabulary": MergekitVocabulary}
