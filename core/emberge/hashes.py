"""Hashes of files, folders, plain values and texts; each file is read only once.

A `HashCache` finds hashes by the file's device, inode, size and times, so a file may have several names.
Those of large files are kept in the user's cache folder, so that a large model is read once per machine.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from emberge.contracts import make_content_key
from emberge.errors import EmbergeError
from emberge.files import FileLock, announce, make_folder, write_text

CACHE_VARIABLE = "EMBERGE_HASH_CACHE"
"""Environment variable; if it is `never`, no hash is kept after the run."""

LARGE_FILE_BYTES = 1 << 20
"""Bytes of a file from which its hash is kept after the run; smaller files are hashed again."""

# Number of files whose hashes are kept; if there are more, the oldest entries are forgotten.
_MOST_FILES = 4096
# A file that changed this many nanoseconds ago could change again within one tick of its clock.
_FRESH_NANOSECONDS = 100_000_000
# Bytes that are mapped at once, so that little memory is resident: a multiple of every machine's
# page size. Hashing takes far longer than another thread, importing torch, blocks the interpreter.
_MAPPED_BYTES = 256 << 20


class HashCache:
    """Hashes of files by their status; `table` is the file in which those of large files are kept.

    If the table cannot be used or is damaged, files are hashed again. `reading` is called before a large file
    is read, from any thread.
    """

    def __init__(
        self, table: Path | None = None, reading: Callable[[], None] = lambda: None
    ) -> None:
        self._table, self._reading = table, reading
        self._kept: Mapping[str, str] | None = None  # read when the first large file is met
        self._known: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def of(self, file: Path) -> str:
        """Return the XXH3 hash of a file's bytes, 128 bits in hex."""
        status = file.stat()
        digest = self._find(status)
        if digest is None:
            if status.st_size >= LARGE_FILE_BYTES:
                self._reading()
            digest = hash_file(file)
            self._remember(status, digest)
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
                return hash_value(dict(zip(files, hashes, strict=True)))
        except OSError as error:
            raise EmbergeError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def learn(self, hashes: Mapping[Path, str]) -> None:
        """Remember hashes of files that have not changed since they were hashed."""
        for file, digest in hashes.items():
            self._remember(file.stat(), digest)

    def save(self) -> None:
        """Add the new hashes of large files to the table."""
        if self._table is None or not self._new:
            return
        with suppress(OSError):
            make_folder(self._table.parent)
            lock = FileLock(self._table.with_suffix(".lock"))
            with lock.lock_when_free():  # other runs save theirs too
                entries = list({**_read_table(self._table), **self._new}.items())
                write_text(self._table, json.dumps(dict(entries[-_MOST_FILES:])), durable=False)
        self._new = {}

    def _find(self, status: os.stat_result) -> str | None:
        key = _build_key(status)
        if key in self._known or self._table is None or status.st_size < LARGE_FILE_BYTES:
            return self._known.get(key)
        if self._kept is None:
            self._kept = _read_table(self._table)
        return self._kept.get(key)

    def _remember(self, status: os.stat_result, digest: str) -> None:
        """Remember the hash of a file that had this status before and after it was read."""
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _FRESH_NANOSECONDS:
            self._known[_build_key(status)] = digest
            if status.st_size >= LARGE_FILE_BYTES:
                self._new[_build_key(status)] = digest


def find_user_table() -> Path | None:
    """Return the file in the user's cache folder that keeps hashes; None if none are to be kept."""
    if os.environ.get(CACHE_VARIABLE) == "never":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return cache / "emberge" / "hashes.json" if cache.is_absolute() else None


def hash_file(path: Path) -> str:
    """Return the XXH3 hash of a file's bytes, 128 bits in hex, from one reading.

    XXH3 distinguishes contents as fast as they are read, sixteen times as fast as SHA-256. It does not
    protect against forgery.
    """
    hasher = xxhash.xxh3_128()
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        for start in range(0, size, _MAPPED_BYTES):
            length = min(_MAPPED_BYTES, size - start)
            announce(stream.fileno(), start, start + length)
            # Mapped, as copying is slower than hashing.
            window = mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_READ, offset=start)
            hasher.update(window)
    return str(hasher.hexdigest())


def hash_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_value(value: object) -> str:
    """Return the SHA-256 of plain values, written as JSON; it is the same in every process."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def hash_texts(texts: Iterable[str]) -> bytes:
    """Return the 128-bit hashes of the texts, 16 bytes each, in order; media are hashed by content."""
    return b"".join(
        hashlib.blake2b(
            make_content_key(text).encode("utf-8", "surrogatepass"), digest_size=16
        ).digest()
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


def _build_key(status: os.stat_result) -> str:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, *times)))
