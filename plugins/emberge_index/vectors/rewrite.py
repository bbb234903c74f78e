"""The loop that rewrites a file of vectors: in bounded memory, resumed after a kill, published by one rename.

The pieces of a plan are written one after the other to a hidden file beside OUT. A journal, another hidden
file, has the length that is on the disk for sure; a later call with the same input and translation goes on
from there, with the same blocks, and so ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, DataError
from emberge.engine import count_noun, join_some, replace_file, write_text

from emberge_index.vectors.pieces import BLOCK, Kept, New, Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from emberge_index.vectors.mapper import Mapper
    from emberge_index.vectors.pieces import Piece, RowSource

__all__ = ["Work", "block_rows", "publish_work", "rewrite", "working_on"]

# Seconds of work that a power cut can cost.
NOTED = 5.0
# Rows that are not finite and named in an error.
SHOWN = 10

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Work:
    """The hidden files beside OUT: the one that is written, and the journal; `key` decides their bytes."""

    out: Path
    key: str

    @property
    def file(self) -> Path:
        """File that grows and becomes OUT."""
        return self.out.with_name(f".{self.out.name}.translating")

    @property
    def journal(self) -> Path:
        """File that has the key and the length that is on the disk."""
        return self.out.with_name(f".{self.out.name}.journal")

    def length(self) -> int:
        """Return the length that an earlier call of the same key has on the disk; 0 without one."""
        try:
            noted = json.loads(self.journal.read_text("utf-8"))
            size = self.file.stat().st_size
        except (OSError, ValueError):
            return 0
        same = isinstance(noted, dict) and noted.get("key") == self.key
        return int(noted["length"]) if same and size >= noted["length"] else 0

    def note(self, handle: int, length: int) -> None:
        """Make sure that this length is on the disk, and note it."""
        os.fsync(handle)
        write_text(self.journal, json.dumps({"key": self.key, "length": length}))

    def remove(self) -> None:
        """Remove both files."""
        self.file.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)


@contextlib.contextmanager
def working_on(out: Path) -> Iterator[None]:
    """Lock OUT against another translation into it.

    Raises:
        CheckpointError: when one is at work.
    """
    path = out.with_name(f".{out.name}.lock")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"{out}: another process translates into it; wait for it or choose another --out"
            ) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def block_rows(*dimensions: int) -> int:
    """Return the rows of a block, by the larger of the dimensions alone."""
    return max(64, BLOCK // (4 * max(dimensions)))


def rewrite(plan: Plan, mapper: Mapper, work: Work, progress: Progress) -> None:
    """Write the pieces of a plan to the hidden file, from where an earlier call ended.

    Reading, mapping and writing of three blocks go on side by side.

    Raises:
        DataError: for rows that are not finite, all of them named by number and id.
    """
    done = work.length()
    with work.file.open("r+b" if done else "wb", buffering=0) as file:
        os.ftruncate(file.fileno(), done)
        file.seek(done)
        write = _Writer(file, work, done)
        place = 0
        with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as writing:
            for piece in plan.pieces:
                size = _size(piece, mapper)
                if place + size > done:
                    blocks = _blocks(plan, piece, mapper, max(0, done - place), progress, reading)
                    _write_all(blocks, write, writing)
                place += size
        work.note(file.fileno(), place)


def _size(piece: Piece, mapper: Mapper) -> int:
    if isinstance(piece, New):
        return len(piece.data)
    if isinstance(piece, Kept):
        return piece.size
    return piece.rows * mapper.dimension * mapper.dtype.itemsize


class _Writer:
    """The hidden file: bytes are added, and their length is noted now and then."""

    def __init__(self, file: Any, work: Work, length: int) -> None:
        self._file, self._work, self._length = file, work, length
        self._noted = time.monotonic()

    def __call__(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += self._file.write(data[done:])
        self._length += len(data)
        if time.monotonic() - self._noted > NOTED:
            self._work.note(self._file.fileno(), self._length)
            self._noted = time.monotonic()


def _write_all(blocks: Iterator[memoryview], write: _Writer, writing: ThreadPoolExecutor) -> None:
    """Write blocks in order, one while the next is made."""
    last: Future[None] | None = None
    for block in blocks:
        if last is not None:
            last.result()
        last = writing.submit(write, block)
    if last is not None:
        last.result()


def _blocks(
    plan: Plan,
    piece: Piece,
    mapper: Mapper,
    done: int,
    progress: Progress,
    reading: ThreadPoolExecutor,
) -> Iterator[memoryview]:
    """Yield the bytes of a piece from `done` on."""
    if isinstance(piece, New):
        yield memoryview(piece.data)[done:]
    elif isinstance(piece, Kept):
        yield from _kept(plan.path, piece, done)
    else:
        yield from _mapped(plan, piece, mapper, done, progress, reading)


def _kept(path: Path, piece: Kept, done: int) -> Iterator[memoryview]:
    with path.open("rb") as file:
        file.seek(piece.start + done)
        for start in range(done, piece.size, BLOCK):
            data = file.read(min(BLOCK, piece.size - start))
            if not data:
                raise DataError(f"{path}: ends too early; copy it again")
            yield memoryview(data)


def _mapped(
    plan: Plan,
    rows: RowSource,
    mapper: Mapper,
    done: int,
    progress: Progress,
    reading: ThreadPoolExecutor,
) -> Iterator[memoryview]:
    size = block_rows(rows.dimension, mapper.dimension)
    width = mapper.dimension * mapper.dtype.itemsize
    first = done // width // size * size  # a block is mapped as a whole, as it was before
    skipped = done - first * width
    for block in _read_ahead(rows.blocks(first, size), reading):
        mapped, bad = mapper(block)
        if len(bad):
            raise _not_finite(plan, rows, mapper, first)
        first += len(block)
        yield _bytes(mapped)[skipped:]
        skipped = 0
        progress(first, rows.rows)


def _bytes(block: NDArray[Any]) -> memoryview:
    return memoryview(block.data).cast("B")


def _read_ahead(
    blocks: Iterator[NDArray[Any]], reading: ThreadPoolExecutor
) -> Iterator[NDArray[Any]]:
    """Yield blocks, of which the next is read while one is used."""
    coming = reading.submit(next, blocks, None)
    while (block := coming.result()) is not None:
        coming = reading.submit(next, blocks, None)
        yield block


def _not_finite(plan: Plan, rows: RowSource, mapper: Mapper, first: int) -> DataError:
    """Return the error that names the rows which are not finite, from `first` on to the end."""
    import numpy as np

    size = block_rows(rows.dimension, mapper.dimension)
    found: list[int] = []
    for block in rows.blocks(first, size):
        with np.errstate(invalid="ignore"):
            found += [first + int(row) for row in np.flatnonzero(~np.isfinite(block).all(axis=1))]
        first += len(block)
    if not found:
        return DataError(
            f"{plan.path}: mapped vectors are not finite in {mapper.dtype.name}; convert it to float32 first"
        )
    named = join_some([rows.name_of(row) for row in found[:SHOWN]])
    more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    return DataError(
        f"{plan.path}: {count_noun(len(found), 'row')} not finite, counted from 0: {named}{more}; embed "
        "their texts again or remove them"
    )


def publish_work(work: Work) -> None:
    """Give the finished hidden file its name."""
    with replace_file(work.out) as side:
        os.replace(work.file, side)
    work.remove()
