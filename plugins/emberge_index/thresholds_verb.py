"""The verb `thresholds`: maps an old model's thresholds to a new one."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError, RecipeError
from emberge.data import read_texts
from emberge.files import write_text

from emberge_index.space import probe_texts, space_at
from emberge_index.threshold_interval import ThresholdInterval, threshold_intervals
from emberge_index.threshold_map import ThresholdMap, threshold_map

if TYPE_CHECKING:
    from emberge import Plugins


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the map of two models' thresholds and the requested thresholds, and return the exit code."""
    requested = _read_thresholds(options.at)
    _require_codes("--old-ranges", options.old_ranges, options.old_as)
    _require_codes("--new-ranges", options.new_ranges, options.new_as)
    texts = read_texts(options.texts) if options.texts is not None else probe_texts()
    texts = list(dict.fromkeys(texts))
    if options.texts is None:
        print(
            f"warning: these {len(texts):,} texts are emberge's own, paragraphs of Python's help; give texts "
            "like those that the rule is for by --texts FILE, a thousand or more",
            file=sys.stderr,
        )
    old, new = (space_at(text, options, plugins) for text in (options.old, options.new))
    vectors = (
        store_as(old.documents(texts), options.old_as, options.old_ranges, "--old-ranges"),
        store_as(new.documents(texts), options.new_as, options.new_ranges, "--new-ranges"),
    )
    thresholds = threshold_map(*vectors)
    intervals = threshold_intervals(*vectors, requested, thresholds)
    print("\n".join(_list_thresholds(thresholds, requested, intervals, len(texts))))
    if options.json is not None:
        forms = {"old_form": options.old_as, "new_form": options.new_as}
        content = {"old_model": old.name, "new_model": new.name, **forms, **thresholds.plain()}
        write_text(options.json, json.dumps(content, indent=1) + "\n")
        print(f"written: {options.json}")
    return 0


def store_as(vectors: Any, form: str, ranges: Path | None, option: str) -> Any:
    """Return vectors [n, d] as they are compared when they are stored in a form, float32 [n, d] for cosines.

    The cosine of bits is 1 - 2h/d at a Hamming distance h of d bits. Codes of int8 are decoded to the middle
    of their steps, with the ranges in a file, or else those of these vectors.

    Raises:
        DataError: if the file has no ranges of d dimensions, or the vectors give none.
    """
    from emberge.encoding import Int8Ranges

    from emberge_index.vectors import Codec

    if form == "float32":
        return vectors
    if form == "binary":
        return Codec("binary").round(vectors)
    if ranges is not None:
        known = Int8Ranges.read(ranges, vectors.shape[1])
    else:
        try:
            known = Int8Ranges.of(vectors)
        except ValueError as error:
            raise DataError(f"{error}; give more texts, or {option} FILE") from error
    return Codec("int8", known).round(vectors)


def _require_codes(option: str, ranges: Path | None, form: str) -> None:
    if ranges is None:
        return
    if form != "int8":
        raise RecipeError(f"{option} {ranges}: only int8 has ranges; take it out, or say int8")
    if not ranges.is_file():
        raise RecipeError(f"{option} {ranges}: there is no such file")


def _read_thresholds(arguments: Sequence[str]) -> list[float]:
    decimals = [text for text in arguments if re.fullmatch(r"-?[01],(?![01]$)\d+", text.strip())]
    if decimals:
        point = decimals[0].replace(",", ".")
        raise RecipeError(
            f"--at {decimals[0]}: a comma separates thresholds, and decimals follow a point; write {point}"
        )
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
    thresholds: ThresholdMap,
    requested: Sequence[float],
    intervals: Sequence[ThresholdInterval],
    texts: int,
) -> Iterator[str]:
    yield f"cosines of {thresholds.pairs:,} pairs of {texts:,} different texts"
    yield "false positives   old      new"
    for rate, old, new in thresholds.table():
        yield f"{rate:>15.2%}   {old:+.4f}  {new:+.4f}"
    if requested:
        yield "for rules between two documents; a limit of a search, query to document, is another one"
    for threshold, interval in zip(map(thresholds.moved, requested), intervals, strict=True):
        caveat = "" if threshold.known else f", which is not sure: {threshold.doubt}"
        yield (
            f"threshold {threshold.old:g} becomes {threshold.new:.4f} (95 %: {interval}), "
            f"at {threshold.rate:.3%} false positives{caveat}"
        )
