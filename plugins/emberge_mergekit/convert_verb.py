"""The verb `convert`: a mergekit YAML printed as a recipe."""

from __future__ import annotations

import argparse

from emberge import Plugins, RecipeError
from emberge.recipes import read_text

from emberge_mergekit.translate import translate


def run(options: argparse.Namespace, _: Plugins) -> int:
    """Print the recipe that means the same as a config.

    Raises:
        RecipeError: if the file cannot be read, or is no config.
    """
    path = options.config
    translated = translate(read_text(path), path)
    if translated is None:
        raise RecipeError(f"{path} is no config of mergekit")
    print(translated.text.rstrip("\n"))
    return 0
