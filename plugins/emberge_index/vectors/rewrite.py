"""The loop that rewrites a file of vectors: in bounded memory, resumed after a kill, published by one rename.

The pieces of a plan are written in order to a file in a hidden folder next to OUT; the folder is locked
against other processes. A journal in the folder has the length of the file that is safely on the disk. A
later call with the same input and translation resumes at this length with the same blocks, so it writes the
same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emberge import DataError, RecipeError
from emberge.files import open_regular, replace_file, working_in, write_text, writing

from emberge_index.vectors.checks import map_blocks
from emberge_index.vectors.pieces import (
    BLOCK,
    KeptBytes,
    NewBytes,
    RewritePlan,
    block_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from emberge_index.vectors.mapper import Mapper
    from emberge_index.vectors.pieces import Piece, VectorSource


# Seconds between two notes in the journal: the most work that a power cut can lose.
NOTED = 5.0

Progress = Callable[[int, int], None]
Bytes = tuple[memoryview, int]


class WrittenBytes(NamedTuple):
    """Number of bytes written, and number of zero vectors among them."""

    length: int = 0
    empty: int = 0


@dataclass(frozen=True)
class WorkFolder:
    """Hidden folder next to OUT with the growing file and a journal; `key` decides their bytes."""

    out: Path
    key: str

    @property
    def folder(self) -> Path:
        """Folder that is locked."""
        return self.out.with_name(f".{self.out.name}.translating")

    @property
    def file(self) -> Path:
        """File that grows: it becomes OUT, or its vectors are written into OUT."""
        return self.folder / "vectors"

    @property
    def journal(self) -> Path:
        """JSON file with this rewrite's key and the number of bytes of `file` that are safe on the disk."""
        return self.folder / "journal"

    def done(self) -> WrittenBytes:
        """Return how many bytes and zero vectors earlier calls with this key wrote."""
        try:
            noted = json.loads(self.journal.read_text("utf-8"))
            size = self.file.stat().st_size
        except (OSError, ValueError):
            return WrittenBytes()
        same = isinstance(noted, dict) and noted.get("key") == self.key
        return (
            WrittenBytes(noted["length"], noted["empty"])
            if same and size >= noted["length"]
            else WrittenBytes()
        )

    def note(self, handle: int, done: WrittenBytes) -> None:
        """Write the file's data to the disk, then record its length in the journal."""
        os.fsync(handle)
        noted = {"key": self.key, "length": done.length, "empty": done.empty}
        write_text(self.journal, json.dumps(noted))

    def remove(self) -> None:
        """Remove the folder with all its files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def require_new(out: Path, suffix: str) -> None:
    """Make sure that a new file of this kind can be written.

    Raises:
        RecipeError: if the file exists, has another suffix, or its folder does not exist.
    """
    if out.exists() or out.is_symlink():
        raise RecipeError(f"{out}: exists already; remove it or choose another --out")
    if out.suffix != suffix:
        raise RecipeError(f"{out}: its format is {suffix}; let its name end so")
    if not out.parent.is_dir():
        raise RecipeError(f"{out.parent}: there is no such folder; create it first")


@contextlib.contextmanager
def working_on(work: WorkFolder) -> Iterator[None]:
    """Lock the work folder; remove it after the block, or after an error that would recur.

    After a full disk or a kill the folder remains, and a later call resumes the work.

    Raises:
        CheckpointError: if another process has locked the folder.
        RecipeError: if another process has created OUT in the meantime.
    """
    with working_in(work.folder):
        try:
            require_new(work.out, work.out.suffix)  # another process may have been quicker
            yield
        except (DataError, RecipeError):
            work.remove()
            raise
        work.remove()


def publish_work(work: WorkFolder, finished: Path) -> None:
    """Rename the finished file of the work folder to OUT.

    Raises:
        RecipeError: if another process has created OUT in the meantime.
        UnwrittenError: if the disk is full or broken.
    """
    with writing(work.out, "the vectors"), replace_file(work.out) as side:
        require_new(work.out, work.out.suffix)
        os.replace(finished, side)


def rewrite(plan: RewritePlan, mapper: Mapper, work: WorkFolder, progress: Progress) -> int:
    """Write the pieces of a plan to the hidden file, from where an earlier call ended.

    Three consecutive blocks are read, mapped and written in parallel. The result is the number of zero
    vectors.

    Raises:
        DataError: if rows are not finite; the message names them by number and id.
    """
    resumed = work.done()
    written_length = resumed.length
    with work.file.open("r+b" if written_length else "wb", buffering=0) as file:
        os.ftruncate(file.fileno(), written_length)
        file.seek(written_length)
        write = _Writer(file, work, resumed)
        place = 0
        with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as writing:
            for piece in plan.pieces:
                size = _count_bytes(piece, mapper)
                if place + size > written_length:
                    blocks = _yield_blocks(
                        plan, piece, mapper, max(0, written_length - place), progress, reading
                    )
                    _write_all(blocks, write, writing)
                place += size
        write.note()
    return write.done.empty


def _count_bytes(piece: Piece, mapper: Mapper) -> int:
    if isinstance(piece, NewBytes):
        return len(piece.data)
    if isinstance(piece, KeptBytes):
        return piece.size
    return piece.rows * mapper.width * mapper.dtype.itemsize


class _Writer:
    """Writer that appends bytes to the hidden file and notes their length every few seconds."""

    def __init__(self, file: Any, work: WorkFolder, done: WrittenBytes) -> None:
        self._file, self._work, self.done = file, work, done
        self._noted = time.monotonic()

    def __call__(self, data: memoryview, empty: int) -> None:
        with writing(self._work.out, "the vectors"):
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        self.done = WrittenBytes(self.done.length + written, self.done.empty + empty)
        if time.monotonic() - self._noted > NOTED:
            self.note()

    def note(self) -> None:
        """Record the written length in the journal now."""
        with writing(self._work.out, "the vectors"):
            self._work.note(self._file.fileno(), self.done)
        self._noted = time.monotonic()


def _write_all(blocks: Iterator[Bytes], write: _Writer, writing: ThreadPoolExecutor) -> None:
    """Write blocks in order; the next block is computed while one is written."""
    last_write: Future[None] | None = None
    for block in blocks:
        if last_write is not None:
            last_write.result()
        last_write = writing.submit(write, *block)
    if last_write is not None:
        last_write.result()


def _yield_blocks(
    plan: RewritePlan,
    piece: Piece,
    mapper: Mapper,
    done: int,
    progress: Progress,
    reading: ThreadPoolExecutor,
) -> Iterator[Bytes]:
    """Yield the bytes of a piece from `done` on, and the number of zero vectors in them."""
    if isinstance(piece, NewBytes):
        yield memoryview(piece.data)[done:], 0
    elif isinstance(piece, KeptBytes):
        yield from _copy_bytes(plan.path, piece, done)
    else:
        yield from _map_rows(plan, piece, mapper, done, progress, reading)


def _copy_bytes(path: Path, piece: KeptBytes, done: int) -> Iterator[Bytes]:
    with open_regular(path) as file:
        file.seek(piece.start + done)
        for start in range(done, piece.size, BLOCK):
            data = file.read(min(BLOCK, piece.size - start))
            if not data:
                raise DataError(f"{path}: ends too early; copy it again")
            yield memoryview(data), 0


def _map_rows(
    plan: RewritePlan,
    rows: VectorSource,
    mapper: Mapper,
    done: int,
    progress: Progress,
    reading: ThreadPoolExecutor,
) -> Iterator[Bytes]:
    size = block_rows(rows.dimension, mapper.dimension)
    width = mapper.width * mapper.dtype.itemsize
    start = done // width // size * size  # a block is mapped as a whole, as it was before
    skipped_rows = done - start * width
    blocks = _read_ahead(rows.blocks(start, size), reading)
    for first, originals, mapped in map_blocks(plan, mapper, blocks, size, start):
        yield memoryview(mapped.vectors.data).cast("B")[skipped_rows:], mapped.empty
        skipped_rows = 0
        progress(first + len(originals), rows.rows)


def _read_ahead(
    blocks: Iterator[NDArray[Any]], reading: ThreadPoolExecutor
) -> Iterator[NDArray[Any]]:
    """Yield blocks; the next block is read while the caller uses one."""
    next_block = reading.submit(next, blocks, None)
    while (block := next_block.result()) is not None:
        next_block = reading.submit(next, blocks, None)
        yield block
