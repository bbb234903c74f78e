"""Hashes of files, folders, plain values and texts; each file is read only once.

A run's `HashCache` finds hashes by the file's path. `UserHashes` is kept for all runs, so that a large model
is read once per machine. It finds hashes by the file's device, inode, size and times, so a file may have
several names; it stores no path.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from emberge.contracts import content_key
from emberge.errors import EmbergeError
from emberge.files import (
    announce,
    make_folder,
    wait_for_lock,
    write_json,
    write_text,
)

SWITCH = "EMBERGE_HASH_CACHE"
"""Environment variable; if it is `never`, no hash is kept after the run."""

LARGE = 1 << 20
"""Bytes of a file from which its hash is kept after the run; smaller files are hashed again."""

# Number of files that `UserHashes` remembers; if there are more, it forgets the oldest entries.
_MOST_FILES = 4096
# A file that changed this many nanoseconds ago could change again within one tick of its clock.
_FRESH_NANOSECONDS = 100_000_000
# A megabyte stays in the processor's cache, so that a second hash of it costs half of a read.
_READ_BYTES = 1 << 20
# Bytes that are mapped at once, so that little memory is resident: a multiple of every machine's
# page size. Hashing them takes far longer than the time for which another thread, importing torch,
# blocks the interpreter.
_MAPPED_BYTES = 256 << 20


class HashCache:
    """Hashes of files by path, size and times, so that each file is read only once.

    Paths below `root` are stored relative to it, other paths as a hash, so the cache file contains no path
    outside `root`. Large files are also looked up in the `shared` hashes. `reading` is called before a large
    file is read, from any thread.
    """

    def __init__(
        self,
        path: Path | None = None,
        root: Path | None = None,
        shared: UserHashes | None = None,
        reading: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.root = root.resolve() if root else None
        self._shared, self._reading = shared, reading
        self._known: dict[str, Any] = {}
        self._changed = False
        if path is not None and path.is_file():
            self._known = _read_table(path)
            self._changed = not self._known  # a damaged file is replaced

    def of(self, file: Path) -> str:
        """Return the XXH3 hash of a file's bytes, 128 bits in hex."""
        status = file.stat()
        record = self._known.get(self._hash_key(file))
        if record and record[:3] == _read_stamp(status):
            return str(record[3])
        digest = self._shared.find(status) if self._shared is not None else None
        if digest is None:
            if status.st_size >= LARGE:
                self._reading()
            digest = _hash_file(file)
        self._remember(file, status, digest)
        return digest

    def of_tree(self, path: Path) -> str:
        """Return a hash of a file's bytes, or of a folder's files, except hidden and compiled ones."""
        if not path.is_dir():
            return self.of(path)
        files = {p.relative_to(path): p for p in sorted(path.rglob("*")) if p.is_file()}
        left_out = {name for name in files if any(map(_is_left_out, name.parts))}
        return self.of_files({n.as_posix(): p for n, p in files.items() if n not in left_out})

    def of_files(self, files: Mapping[str, Path]) -> str:
        """Return a hash of the content of files by name.

        Raises:
            EmbergeError: if a file cannot be read.
        """
        try:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                hashes = pool.map(self.of, files.values())
                return stable_hash(dict(zip(files, hashes, strict=True)))
        except OSError as error:
            raise EmbergeError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def learn(self, hashes: Mapping[Path, str]) -> None:
        """Remember hashes of files that have not changed since they were hashed."""
        for file, digest in hashes.items():
            self._remember(file, file.stat(), digest)

    def _remember(self, file: Path, status: os.stat_result, digest: str) -> None:
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _FRESH_NANOSECONDS:
            self._known[self._hash_key(file)] = [*_read_stamp(status), digest]
            self._changed = True
            if self._shared is not None:
                self._shared.learn(status, digest)

    def save(self) -> None:
        """Write the new hashes; if the folder cannot be written, files are hashed again in the next run."""
        if self._shared is not None:
            self._shared.save()
        if self.path is None or not self._changed:
            return
        try:
            with wait_for_lock(self.path.with_suffix(".lock")):  # other processes save theirs too
                self._known = {**_read_table(self.path), **self._known}
                write_json(self.path, self._known, durable=False)
        except OSError:
            return
        self._changed = False

    def _hash_key(self, file: Path) -> str:
        absolute = file.resolve()
        if self.root is not None and absolute.is_relative_to(self.root):
            return absolute.relative_to(self.root).as_posix()
        return hashlib.sha256(os.fsencode(absolute)).hexdigest()


class UserHashes:
    """Hashes by a file's status, kept in the user's cache folder for all runs.

    If the folder cannot be used or the table is damaged, files are hashed again.
    """

    def __init__(self) -> None:
        self.path = _find_user_table()
        self._known: dict[str, str] | None = None
        self._new: dict[str, str] = {}

    def find(self, status: os.stat_result) -> str | None:
        """Return the hash of the file with this status; None if it is unknown."""
        if self.path is None or status.st_size < LARGE:
            return None
        if self._known is None:
            self._known = _read_table(self.path)
        return self._known.get(_build_key(status))

    def learn(self, status: os.stat_result, digest: str) -> None:
        """Remember the hash of a file that had this status before and after it was read."""
        if status.st_size >= LARGE:
            self._new[_build_key(status)] = digest

    def save(self) -> None:
        """Add the new hashes to the table."""
        if self.path is None or not self._new:
            return
        with suppress(OSError):
            make_folder(self.path.parent)
            with wait_for_lock(self.path.with_suffix(".lock")):  # other runs save theirs too
                entries = list({**_read_table(self.path), **self._new}.items())
                text = json.dumps(dict(entries[-_MOST_FILES:]))
                write_text(self.path, text, durable=False, shared=True)
        self._new = {}


def read_file_pieces(path: Path, size: int = _READ_BYTES) -> Iterator[memoryview]:
    """Yield a file's bytes in order, at most `size` at once; mapped, as copying is slower than hashing."""
    with path.open("rb") as stream:
        remaining_bytes = os.fstat(stream.fileno()).st_size
        for start in range(0, remaining_bytes, _MAPPED_BYTES):
            window_bytes = min(_MAPPED_BYTES, remaining_bytes - start)
            announce(stream.fileno(), start, start + window_bytes)
            window = mmap.mmap(stream.fileno(), window_bytes, access=mmap.ACCESS_READ, offset=start)
            view = memoryview(window)
            yield from (view[offset : offset + size] for offset in range(0, window_bytes, size))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stable_hash(value: object) -> str:
    """Return the SHA-256 of plain values, written as JSON; it is the same in every process."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def text_keys(texts: Iterable[str]) -> bytes:
    """Return the 128-bit hashes of the texts, 16 bytes each, in order; media are hashed by content."""
    return b"".join(
        hashlib.blake2b(content_key(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for text in texts
    )


def _is_left_out(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or is Python's cache of compiled modules."""
    return name.startswith(".") or name == "__pycache__"


def _read_table(path: Path) -> dict[str, Any]:
    """Return the content of a cache file; an empty table if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _read_stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _hash_file(file: Path) -> str:
    # XXH3 because hashing must not cost more than merging does: SHA-256 reads a sixteenth as fast.
    # It distinguishes contents, but does not protect against forgery.
    hasher = xxhash.xxh3_128()
    for piece in read_file_pieces(file, _MAPPED_BYTES):
        hasher.update(piece)
    return str(hasher.hexdigest())


def _find_user_table() -> Path | None:
    if os.environ.get(SWITCH) == "never":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return cache / "emberge" / "hashes.json" if cache.is_absolute() else None


def _build_key(status: os.stat_result) -> str:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, *times)))
