"""The verb `translate`: a file of vectors rewritten by a translation."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError, RecipeError
from emberge.engine import replace_file

if TYPE_CHECKING:
    from emberge_index.translation.translation_file import Translation
    from emberge_index.vectors.pieces import Plan

__all__ = ["plan_vectors", "translate", "translate_file"]

# Seconds between two lines of progress: on a terminal, and in a log.
SHOWN, LOGGED = 0.2, 30.0
FORMATS = ".npy, .safetensors, .parquet, .faiss or .index"


def translate(options: argparse.Namespace, _plugins: object) -> int:
    """Rewrite a file of vectors and show where it is."""
    progress = _Progress(quiet=options.quiet)
    rows = translate_file(
        options.vectors,
        options.by,
        options.out,
        column=options.column,
        any_model=options.any_model,
        progress=progress,
    )
    progress.end()
    print(f"translated: {options.out}, {rows:,} vectors")
    return 0


def translate_file(
    vectors: Path,
    by: Path,
    out: Path,
    *,
    column: str | None = None,
    any_model: bool = False,
    progress: Any = None,
) -> int:
    """Rewrite the vectors of one file into another by a translation; return their number.

    A killed call, repeated, goes on from where it was, to the same bytes. `progress(done, total)` is called
    after each block.

    Raises:
        DataError: for vectors that the translation does not fit, before anything is written.
        CheckpointError: for a folder without a translation.
    """
    from emberge_index.translation.translation_file import read_translation
    from emberge_index.vectors.checks import require_fitting
    from emberge_index.vectors.rewrite import working_on

    if out.exists():
        raise RecipeError(f"{out}: exists already; remove it or choose another --out")
    if out.suffix != vectors.suffix:
        raise RecipeError(
            f"{out}: vectors stay in their format; let its name end with {vectors.suffix}"
        )
    if not out.parent.is_dir():
        raise RecipeError(f"{out.parent}: there is no such folder; create it first")
    translation = read_translation(by)
    plan = plan_vectors(vectors, translation, column)
    require_fitting(plan, translation, any_model=any_model)
    _require_space(plan, translation, out)
    with working_on(out):
        _write(plan, translation, out, progress or (lambda *_: None))
    return plan.rows.rows


def plan_vectors(path: Path, translation: Translation, column: str | None) -> Plan:
    """Return the pieces of a file of vectors, by the ending of its name.

    Raises:
        DataError: for a file that is missing, or whose vectors cannot be rewritten.
        RecipeError: for an ending that is not known.
    """
    from emberge_index.vectors.faiss_file import plan_faiss
    from emberge_index.vectors.npy_file import plan_npy
    from emberge_index.vectors.parquet_file import plan_parquet
    from emberge_index.vectors.safetensors_vectors import plan_safetensors
    from emberge_index.vectors.space_mark import mark_of

    if not path.is_file():
        raise DataError(f"{path}: there is no such file of vectors")
    dimension = translation.header.target.dimension
    if path.suffix == ".npy":
        return plan_npy(path, dimension)
    if path.suffix == ".safetensors":
        return plan_safetensors(path, dimension, column, mark_of(translation.header))
    if path.suffix == ".parquet":
        return plan_parquet(path, column)
    if path.suffix in (".faiss", ".index"):
        return plan_faiss(path, dimension)
    raise RecipeError(f"{path}: is in no format that can be rewritten; name a file in {FORMATS}")


def _require_space(plan: Plan, translation: Translation, out: Path) -> None:
    """Refuse a disk without room for the result.

    Raises:
        DataError: with what is needed and what is free.
    """
    import shutil

    header = translation.header
    size = plan.path.stat().st_size * header.target.dimension // header.source.dimension
    free = shutil.disk_usage(out.parent).free
    if plan.path.suffix == ".parquet":
        size *= 2  # the mapped vectors are written once alone
    if free < size:
        raise DataError(
            f"{out.parent}: needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; make room"
        )


def _write(plan: Plan, translation: Translation, out: Path, progress: Any) -> None:
    import numpy as np

    from emberge_index.vectors.mapper import Mapper
    from emberge_index.vectors.parquet_file import ColumnRows, write_parquet
    from emberge_index.vectors.rewrite import Work, block_rows, publish_work, rewrite
    from emberge_index.vectors.space_mark import mark_of

    mapper = Mapper(translation, plan.rows.dtype)
    work = Work(out, _key(plan, translation))
    rewrite(plan, mapper, work, progress)
    if not isinstance(plan.rows, ColumnRows):
        publish_work(work)
        return
    rows, dimension = plan.rows.rows, mapper.dimension
    shape = (rows, dimension)
    mapped = np.memmap(work.file, plan.rows.dtype, "r", shape=shape) if rows else np.zeros(shape)
    size = block_rows(plan.rows.dimension, dimension)
    with replace_file(out) as side:
        write_parquet(plan.rows, mapped, side, mark_of(translation.header), size)
    work.remove()


def _key(plan: Plan, translation: Translation) -> str:
    """Return a text that decides the bytes: the input as a file, its column, and the map."""
    status = os.stat(plan.path)
    named = [
        str(plan.path.resolve()),
        status.st_size,
        status.st_mtime_ns,
        getattr(plan.rows, "column", None),
        hashlib.sha256(translation.fitted.matrix.tobytes()).hexdigest(),
        hashlib.sha256(translation.fitted.offset.tobytes()).hexdigest(),
    ]
    return json.dumps(named)


class _Progress:
    """A line on the terminal with rows, speed and time left; a line now and then in a log."""

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
        left = f", {(total - done) / speed:,.0f} s left" if speed else ""
        text = f"{done:,} of {total:,} vectors ({done / total:.0%}), {speed:,.0f} a second{left}"
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
