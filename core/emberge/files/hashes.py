"""Hashes of files and folders by content, remembered so that a file is read only once."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from emberge.contracts import content_key
from emberge.errors import EmbergeError
from emberge.files.atomic import write_json
from emberge.files.locks import wait_for_lock
from emberge.files.read_ahead import announce
from emberge.files.user_hashes import LARGE, UserHashes

__all__ = [
    "HashCache",
    "file_fingerprint",
    "file_pieces",
    "files_fingerprint",
    "folder_fingerprint",
    "sha256_of",
    "stable_hash",
    "text_keys",
]

# A file that changed this many nanoseconds ago could change again within one tick of its clock.
_FRESH = 100_000_000
# A megabyte stays in the processor's cache, so that a second hash of it costs half of a read.
_READ = 1 << 20
# A window at a time, so that what is resident stays small: a multiple of any machine's page. It takes far
# longer to hash than another thread keeps the interpreter, for one that is importing torch.
_MAPPED = 256 << 20


class HashCache:
    """Hashes of files by path, size and times, so that each file is read only once.

    Paths below `root` are remembered relative to it, others as a hash: the cache's own file holds no path.
    Large files are looked up among the `shared` hashes too. `reading` is called before a large file is read,
    from any thread.
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
            self._known = _remembered(path)
            self._changed = not self._known  # damaged: written anew

    def of(self, file: Path) -> str:
        """Return the XXH3 hash of a file's bytes, 128 bits in hex."""
        status = file.stat()
        known = self._known.get(self._key(file))
        if known and known[:3] == _stamp(status):
            return str(known[3])
        digest = self._shared.find(status) if self._shared is not None else None
        if digest is None:
            if status.st_size >= LARGE:
                self._reading()
            digest = _digest(file)
        self._keep(file, status, digest)
        return digest

    def learn(self, hashes: Mapping[Path, str]) -> None:
        """Remember hashes that were taken of files as they are now."""
        for file, digest in hashes.items():
            self._keep(file, file.stat(), digest)

    def _keep(self, file: Path, status: os.stat_result, digest: str) -> None:
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _FRESH:
            self._known[self._key(file)] = [*_stamp(status), digest]
            self._changed = True
            if self._shared is not None:
                self._shared.learn(status, digest)

    def save(self) -> None:
        """Write what was learned; a folder that cannot be written costs only time."""
        if self._shared is not None:
            self._shared.save()
        if self.path is None or not self._changed:
            return
        try:
            with wait_for_lock(self.path.with_suffix(".lock")):  # other processes save theirs too
                self._known = {**_remembered(self.path), **self._known}
                write_json(self.path, self._known, durable=False)
        except OSError:
            return
        self._changed = False

    def _key(self, file: Path) -> str:
        absolute = file.resolve()
        if self.root is not None and absolute.is_relative_to(self.root):
            return absolute.relative_to(self.root).as_posix()
        return hashlib.sha256(os.fsencode(absolute)).hexdigest()


def _remembered(path: Path) -> dict[str, Any]:
    """Return the content of a cache's file; nothing when it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(file: Path) -> str:
    # XXH3 because hashing must not cost more than merging does: SHA-256 reads a sixteenth as fast. It tells
    # contents apart; it does not defend against forgery.
    hasher = xxhash.xxh3_128()
    for piece in file_pieces(file, _MAPPED):
        hasher.update(piece)
    return str(hasher.hexdigest())


def file_pieces(path: Path, size: int = _READ) -> Iterator[memoryview]:
    """Yield a file's bytes in order, at most `size` at once, mapped: a copy takes longer than hashing."""
    with path.open("rb") as stream:
        left = os.fstat(stream.fileno()).st_size
        for start in range(0, left, _MAPPED):
            mapped = min(_MAPPED, left - start)
            announce(stream.fileno(), start, start + mapped)
            window = mmap.mmap(stream.fileno(), mapped, access=mmap.ACCESS_READ, offset=start)
            view = memoryview(window)
            yield from (view[at : at + size] for at in range(0, mapped, size))


def file_fingerprint(path: Path, cache: HashCache | None = None) -> str:
    """Return a hash of a file's bytes, or of all files below a folder."""
    if path.is_dir():
        return folder_fingerprint(path, cache)
    return (cache or HashCache()).of(path)


def folder_fingerprint(folder: Path, cache: HashCache | None = None) -> str:
    """Return a hash of all files below a folder, by their names in it; hidden ones do not count."""
    inside = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file()}
    shown = {n.as_posix(): p for n, p in inside.items() if not _hidden(n)}
    return files_fingerprint(shown, cache)


def files_fingerprint(files: Mapping[str, Path], cache: HashCache | None = None) -> str:
    """Return a hash of the content of files by name.

    Raises:
        EmbergeError: for a file that cannot be read.
    """
    cache = cache or HashCache()
    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return stable_hash(dict(zip(files, pool.map(cache.of, files.values()), strict=True)))
    except OSError as error:
        raise EmbergeError(f"{error.filename}: cannot be read: {error.strerror}") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stable_hash(value: object) -> str:
    """Return the SHA-256 of plain values as JSON, the same in every process."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts)


def text_keys(texts: Iterable[str]) -> bytes:
    """Return the 128-bit hash of each text, 16 bytes after 16 bytes; media count by their content."""
    return b"".join(
        hashlib.blake2b(content_key(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for text in texts
    )
