"""Hashes of files, folders, plain values and texts; each file is read only once.

A `HashCache` finds hashes by the file's device, inode, size and times, so a file may have several names, and
its folder may be renamed. Those of large files are kept in the user's cache folder, so that a large model is
read once per machine.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
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
# page size. It takes longer to hash than a thread that imports torch holds the interpreter.
_MAPPED_BYTES = 256 << 20
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class FileContent:
    """Size of a file in bytes, and its XXH3 hash, 128 bits in hex: the entry of a file in artifact.json."""

    size: int
    xxh3: str

    @classmethod
    def of_bytes(cls, content: bytes) -> FileContent:
        """Return the size and the hash of a file's bytes."""
        return cls(len(content), str(xxhash.xxh3_128_hexdigest(content)))

    @classmethod
    def from_plain(cls, plain: Any) -> FileContent | None:
        """Return the content described by JSON values; None if they are malformed."""
        if not isinstance(plain, Mapping) or not isinstance(plain.get("xxh3"), str):
            return None
        return cls(int(plain.get("size", -1)), plain["xxh3"])


class HashCache:
    """Hashes of files by their status; those of large files are kept in `folder`, unless it is None.

    If the kept hashes cannot be used or are damaged, files are hashed again. `reading` is called before a
    large file is read, from any thread.
    """

    def __init__(
        self, folder: Path | None = None, reading: Callable[[], None] = lambda: None
    ) -> None:
        if os.environ.get(CACHE_VARIABLE) == "never":
            folder = None
        self._table = folder / "hashes.json" if folder is not None else None
        self._reading = reading
        self._stored: Mapping[str, str] | None = None  # read when the first large file is met
        self._known: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def of(self, file: Path) -> str:
        """Return the XXH3 hash of a file's bytes, 128 bits in hex."""
        status = file.stat()
        key, is_large = _build_key(status), status.st_size >= LARGE_FILE_BYTES
        digest = self._known.get(key)
        if digest is None and is_large and self._table is not None:
            self._stored = _read_table(self._table) if self._stored is None else self._stored
            digest = self._stored.get(key)
        if digest is None:
            if is_large:
                self._reading()
            digest = hash_file(file)
            age = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)
            if age > _FRESH_NANOSECONDS:
                self._known[key] = digest
                if is_large:
                    self._new[key] = digest
        return digest

    def of_tree(self, path: Path) -> str:
        """Return a hash of a file's bytes, or of a folder's files, except hidden and compiled ones."""
        if not path.is_dir():
            return self.of(path)
        files = {p.relative_to(path): p for p in sorted(path.rglob("*")) if p.is_file()}
        return self.of_files(
            {
                name.as_posix(): file
                for name, file in files.items()
                if not any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            }
        )

    def of_files(self, files: Mapping[str, Path]) -> str:
        """Return a hash of the content of files by name.

        Raises:
            EmbergeError: if a file cannot be read.
        """
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                hashes = pool.map(self.of, files.values())
                return hash_value(dict(zip(files, hashes, strict=True)))
        except OSError as error:
            raise EmbergeError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def list_contents(self, folder: Path, *, leave_out: str) -> dict[str, FileContent]:
        """Return the content of every file below a folder, by relative path.

        Links, hidden files, files in hidden folders, and the file `leave_out` are not listed.
        """
        names = {
            path: path.relative_to(folder)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        files = [
            path
            for path, name in names.items()
            if str(name) != leave_out and not any(part.startswith(".") for part in name.parts)
        ]
        with ThreadPoolExecutor(_THREADS) as pool:
            return {
                names[path].as_posix(): FileContent(path.stat().st_size, digest)
                for path, digest in zip(files, pool.map(self.of, files), strict=True)
            }

    def note(self, file: Path, digest: str) -> None:
        """Remember the hash of a finished large file, which was hashed while it was written."""
        key = _build_key(file.stat())
        self._known[key] = self._new[key] = digest

    def save(self) -> None:
        """Add the new hashes of large files to the kept ones."""
        if self._table is None or not self._new:
            return
        with suppress(OSError):
            make_folder(self._table.parent)
            lock = FileLock(self._table.with_suffix(".lock"))
            with lock.lock_when_free():  # other runs save theirs too
                entries = list({**_read_table(self._table), **self._new}.items())
                write_text(self._table, json.dumps(dict(entries[-_MOST_FILES:])), durable=False)
        self._new = {}


WRITERS_CACHE: ContextVar[HashCache | None] = ContextVar("writers_cache", default=None)
"""The cache that gets the hashes of weights while they are written; None if they are not hashed."""


@contextmanager
def noting_hashes(cache: HashCache) -> Iterator[None]:
    """Hash large weights while the `with` block writes them, and note the hashes in `cache`."""
    token = WRITERS_CACHE.set(cache)
    try:
        yield
    finally:
        WRITERS_CACHE.reset(token)


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


def _read_table(path: Path) -> dict[str, Any]:
    """Return the content of a cache file; an empty table if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _build_key(status: os.stat_result) -> str:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, *times)))
