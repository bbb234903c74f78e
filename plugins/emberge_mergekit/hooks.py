"""mergekit's configs as recipes, and its own merge methods as a strategy; the only importer of mergekit."""

from __future__ import annotations

import re
from pathlib import Path

from emberge import hookimpl, make_hook
from emberge.plugin_verbs import Verb, VerbOption

# The first key of an emberge recipe at the start of a line.
_STEPS_KEY = re.compile(r"^steps[ \t]*:", re.MULTILINE)


@hookimpl
def read_recipe(text: str, path: Path | None) -> str | None:
    # A recipe of emberge need not wait for the translator's import.
    if _STEPS_KEY.search(text):
        return None
    from emberge_mergekit.translate import translate

    return translate(text, path)


register_merge_strategies = make_hook(mergekit="emberge_mergekit.strategy:Mergekit")
register_verbs = make_hook(
    convert=Verb(
        summary="print a mergekit YAML as a recipe; save it next to the YAML, as folders are relative "
        "to it",
        examples="emberge convert mergekit.yml > recipe.yaml",
        options=(VerbOption("config", "mergekit's YAML", "CONFIG", Path),),
        run="emberge_mergekit.translate:run_verb",
    )
)
