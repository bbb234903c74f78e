"""The verb `translate`: a file of vectors rewritten by a translation."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emberge import DataError, RecipeError
from emberge.files import require_space, writing
from emberge.wording import count_noun

if TYPE_CHECKING:
    from emberge_index.translation import Translation
    from emberge_index.vectors.codes import Codec, CodeKind
    from emberge_index.vectors.pieces import RewritePlan


# Seconds between two lines of progress: on a terminal, and in a log.
SHOWN, LOGGED = 0.2, 30.0


def translate(options: argparse.Namespace, _plugins: object) -> int:
    """Rewrite a file of vectors and print the path of the result."""
    progress = _RewriteProgress(quiet=options.quiet)
    translated = translate_file(
        options.vectors,
        options.by,
        options.out,
        column=options.column,
        any_model=options.any_model,
        ranges=options.ranges,
        new_ranges=options.new_ranges,
        kind=options.form,
        progress=progress,
    )
    progress.end()
    print(f"translated: {options.out}, {translated.rows:,} vectors")
    if translated.ranges is not None:
        print(f"ranges of its int8: {translated.ranges}")
    if translated.empty:
        print(
            f"{count_noun(translated.empty, 'vector')} of zeros, as of an empty document, stay as they are"
        )
    return 0


class Translated(NamedTuple):
    """Counts of a translated file: all vectors, and zero vectors, which are not translated.

    `ranges` is the file with the ranges of new int8 codes.
    """

    rows: int
    empty: int
    ranges: Path | None = None


def translate_file(
    vectors: Path,
    by: Path,
    out: Path,
    *,
    column: str | None = None,
    any_model: bool = False,
    ranges: Path | None = None,
    new_ranges: Path | None = None,
    kind: CodeKind | None = None,
    progress: Any = None,
) -> Translated:
    """Rewrite one file's vectors into another file by a translation; return the number of vectors.

    `ranges` is the file with the ranges of stored int8 codes. `kind` is the form of the new vectors of an npy
    file: by default that of the old ones. New int8 codes have the ranges of the file `new_ranges`, or those
    of a sample of mapped vectors, which are written beside OUT.

    If a killed call is repeated, it resumes where it stopped and writes the same bytes. `progress(done,
    total)` is called after each block.

    Raises:
        DataError: if the vectors are not the translation's source vectors, before anything is written; or if
            the folder has no translation.
        CheckpointError: if another process translates into the same file.
    """
    from emberge_index.vectors.checks import open_fitting
    from emberge_index.vectors.codes import locate_ranges
    from emberge_index.vectors.mark_file import require_new_mark
    from emberge_index.vectors.new_codes import build_codec
    from emberge_index.vectors.open_vectors import require_format
    from emberge_index.vectors.rewrite import require_new

    require_format(vectors)
    require_new(out, vectors.suffix)
    require_new_mark(out)
    plan, translation = open_fitting(
        vectors, by, column, any_model=any_model, ranges=ranges, kind=kind
    )
    if new_ranges is not None and plan.kind != "int8":
        raise RecipeError(
            "--new-ranges are those of new int8 vectors; add --as int8, or take them out"
        )
    _require_space(plan, translation, out)
    codec = build_codec(plan, translation, new_ranges)
    _require_new_ranges(out, codec)
    empty = _write_vectors(plan, translation, codec, out, progress or (lambda *_: None))
    has_ranges = codec is not None and codec.ranges is not None
    return Translated(plan.rows.rows, empty, locate_ranges(out) if has_ranges else None)


def _require_new_ranges(out: Path, codec: Codec | None) -> None:
    """Make sure that the ranges of the new codes replace nothing but equal ranges, of a killed call.

    Raises:
        RecipeError: if another file has their name.
    """
    from emberge_index.vectors.codes import locate_ranges

    if codec is None or codec.ranges is None or not os.path.lexists(locate_ranges(out)):
        return
    path = locate_ranges(out)
    try:
        is_equal = codec.ranges.equals(type(codec.ranges).read(path, len(codec.ranges.low)))
    except DataError:
        is_equal = False
    if not is_equal:
        raise RecipeError(f"{path}: exists already; remove it or choose another --out")


def _require_space(plan: RewritePlan, translation: Translation, out: Path) -> None:
    """Refuse a disk without enough space for the result.

    Raises:
        EmbergeError: if it has none; the message has the needed and the free space.
    """
    header = translation.header
    size = plan.path.stat().st_size * header.target.dimension // header.source.dimension
    if plan.finish is not None:
        size *= 2  # the mapped vectors are written once alone
    require_space(out.parent, size)


def _write_vectors(
    plan: RewritePlan, translation: Translation, codec: Codec | None, out: Path, progress: Any
) -> int:
    """Write the mapped vectors, and return the number of zero vectors."""
    import numpy as np

    from emberge_index.vectors.codes import locate_ranges
    from emberge_index.vectors.mapper import Mapper
    from emberge_index.vectors.mark_file import write_mark_file
    from emberge_index.vectors.pieces import mark_of
    from emberge_index.vectors.rewrite import WorkFolder, publish_work, rewrite, working_on

    mapper = Mapper(translation, plan.rows.dtype, codec)
    work = WorkFolder(out, _describe_work(plan, translation, codec))
    with working_on(work):
        empty = rewrite(plan, mapper, work, progress)
        finished_file = work.file
        if plan.finish is not None:
            finished_file = work.folder / "finished"
            shape = (plan.rows.rows, mapper.dimension)
            mapped: Any = (
                np.memmap(work.file, plan.rows.dtype, "r", shape=shape)
                if plan.rows.rows
                else np.zeros(shape)
            )
            with writing(out, "the vectors"):
                plan.finish(mapped, finished_file)
        # Written first: a file of vectors is never there without its mark and its ranges.
        if codec is not None and codec.ranges is not None:
            codec.ranges.write(locate_ranges(out))
        write_mark_file(out, finished_file, mark_of(translation.header))
        publish_work(work, finished_file)
    return empty


def _describe_work(plan: RewritePlan, translation: Translation, codec: Codec | None) -> str:
    """Return a text of all that decides the bytes: the input file, its rows, and the map with its facts."""
    status = os.stat(plan.path)
    rows_and_map = [
        str(plan.path.resolve()),
        status.st_size,
        status.st_mtime_ns,
        repr(plan.rows),
        repr(codec),
        asdict(translation.header),
        hashlib.sha256(translation.fitted.matrix.tobytes()).hexdigest(),
        hashlib.sha256(translation.fitted.offset.tobytes()).hexdigest(),
    ]
    return json.dumps(rows_and_map)


class _RewriteProgress:
    """Progress as one line on a terminal (rows, speed, time left), or a line every 30 s in a log."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._terminal = quiet, sys.stderr.isatty()
        self._begun = self._last = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._begun = done, now
        if self._quiet or now - self._last < (SHOWN if self._terminal else LOGGED):
            return
        self._last = now
        speed = (done - self._first) / max(now - self._begun, 1e-9)
        time_left = f", {(total - done) / speed:,.0f} s left" if speed else ""
        text = (
            f"{done:,} of {total:,} vectors ({done / total:.0%}), {speed:,.0f} a second{time_left}"
        )
        print(
            f"\r{text}\x1b[K" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Clear the line."""
        if self._terminal and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
