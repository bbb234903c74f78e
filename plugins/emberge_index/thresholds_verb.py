"""The verb `thresholds`: maps an old model's thresholds to a new one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from emberge import RecipeError
from emberge.data import read_texts
from emberge.files import write_text

from emberge_index.space import probe_texts, space_at
from emberge_index.threshold_map import ThresholdMap, threshold_map

if TYPE_CHECKING:
    from emberge import Plugins


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the map of two models' thresholds and the requested thresholds, and return the exit code."""
    requested = _read_thresholds(options.at)
    texts = read_texts(options.texts) if options.texts is not None else probe_texts()
    texts = list(dict.fromkeys(texts))
    old, new = (space_at(text, options, plugins) for text in (options.old, options.new))
    thresholds = threshold_map(old.documents(texts), new.documents(texts))
    print("\n".join(_list_thresholds(thresholds, requested, len(texts))))
    if options.json is not None:
        content = {"old_model": old.name, "new_model": new.name, **thresholds.plain()}
        write_text(options.json, json.dumps(content, indent=1) + "\n")
        print(f"written: {options.json}")
    return 0


def _read_thresholds(arguments: Sequence[str]) -> list[float]:
    words = [word for text in arguments for word in text.split(",")]
    try:
        thresholds = [float(word) for word in words]
    except ValueError:
        raise RecipeError(f"--at {','.join(words)}: thresholds are numbers: 0.7,0.8") from None
    if outside := [
        word for word, threshold in zip(words, thresholds, strict=True) if not -1 <= threshold <= 1
    ]:
        raise RecipeError(f"--at {outside[0]}: a cosine is from -1 to 1")
    return thresholds


def _list_thresholds(
    thresholds: ThresholdMap, requested: Sequence[float], texts: int
) -> Iterator[str]:
    yield f"cosines of {thresholds.pairs:,} pairs of {texts:,} different texts"
    yield "false positives   old      new"
    for rate, old, new in thresholds.table():
        yield f"{rate:>15.2%}   {old:+.4f}  {new:+.4f}"
    for threshold in map(thresholds.moved, requested):
        caveat = "" if threshold.known else f", which is not sure: {threshold.doubt}"
        yield (
            f"threshold {threshold.old:g} becomes {threshold.new:.4f}, "
            f"at {threshold.rate:.3%} false positives{caveat}"
        )
