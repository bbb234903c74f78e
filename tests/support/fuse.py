"""Ends this process at its n-th call that changes a disk, as a kill would, or as a power cut would."""

from __future__ import annotations

import builtins
import io
import mmap
import os
import random
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

# Everything that merges, recipes and the standard library's file functions change a disk by.
FOLDERS = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "symlink", "link")
LENGTHS = ("truncate", "ftruncate", "posix_fallocate")
SYNCS = ("fsync", "fdatasync")
CHANGES = (*FOLDERS, *LENGTHS, *SYNCS)
WRITES = ("write", "pwrite", "pwritev", "writev", "sendfile", "copy_file_range")
DEATH = 137
PAGE = mmap.PAGESIZE
_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass
class Fuse:
    """Counts calls that change a disk and dies right before the `at`-th, or with `half`, in its middle.

    With `power` it dies as in a power cut, which takes with it some of what was written and not synced;
    the number decides of what. `calls` names what was called, `risky` holds the numbers of those before
    which something was not synced, `divisible` of those that write, `written` counts bytes.
    """

    at: int | None = None
    half: bool = False
    power: int | None = None
    calls: list[str] = field(default_factory=list)
    risky: list[int] = field(default_factory=list)
    divisible: list[int] = field(default_factory=list)
    written: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._real = {name: getattr(os, name) for name in ("open", *CHANGES, *WRITES)}
        self._real_file = io.open
        self._unsynced: list[Lost] = []

    def __enter__(self) -> Fuse:
        for name in CHANGES:
            setattr(os, name, self._change(name))
        for name in WRITES:
            setattr(os, name, self._write(name))
        os.open = self._open
        builtins.open = io.open = self._file()
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        builtins.open = io.open = self._real_file
        for lost in self._unsynced:
            os.close(lost.twin)

    def end(self) -> None:
        """Count the end as a call, after the last of them."""
        with self._lock:
            self._count("the end")

    def _change(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                self._count(name)
                if name in SYNCS:  # in earnest it would only take time
                    return self._settle(args[0])
                self._note_truncation(name, args)
                return self._real[name](*args, **options)

        return call

    def _write(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self._lock:
                return self.write(name, args, lambda some: self._real[name](*some))

        return call

    def write(self, name: str, args: tuple[Any, ...], real: Callable[[Any], Any]) -> Any:
        """Count a call that writes; its half is half of its bytes."""
        length = _length(name, args)
        fatal = self._count(name, divisible=length > 1)
        if length > 1:
            self.divisible.append(len(self.calls))
        self._note_write(name, args, length)
        if fatal:
            real(_halved(name, args))
            self._die()
        done = real(args)
        self.written += done or 0
        return done

    def _open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        changing = flags & (os.O_CREAT | os.O_TRUNC)
        with self._lock:
            if changing:
                self._count("open")
            old = None
            if flags & os.O_TRUNC and os.path.isfile(path):
                twin = self._real["open"](path, os.O_RDWR)
                old = Lost(twin, 0, os.pread(twin, os.fstat(twin).st_size, 0))
            handle: int = self._real["open"](path, flags, mode, **options)
            if old is not None:
                self._unsynced.append(old)
            return handle

    def _file(self) -> Callable[..., Any]:
        real, fuse = io.open, self

        class Counted(io.FileIO):
            def write(self, data: Any) -> int | None:
                with fuse._lock:
                    args = (self.fileno(), data)
                    return fuse.write("write", args, lambda some: io.FileIO.write(self, some[1]))

            def truncate(self, size: int | None = None) -> int:
                with fuse._lock:
                    fuse._count("truncate")
                    fuse._note_truncation("ftruncate", (self.fileno(), self.tell()))
                    return super().truncate(size)

        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or (isinstance(file, int) and not _on_disk(file)):
                return real(file, mode, *args, **options)
            opener = options.get("opener") or (lambda p, f: os.open(p, f, 0o666))
            closefd = options.get("closefd", True)
            raw = Counted(file, mode.replace("b", ""), closefd=closefd, opener=opener)
            buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            text = {k: options[k] for k in ("encoding", "errors", "newline") if k in options}
            return buffer if "b" in mode else io.TextIOWrapper(buffer, **text)

        return opened

    def _count(self, name: str, *, divisible: bool = False) -> bool:
        """Note a call; True when it is to die in its middle."""
        self.calls.append(name)
        if self._unsynced:
            self.risky.append(len(self.calls))
        fatal = len(self.calls) == self.at
        if fatal and not self.half:
            self._die()
        assert divisible or not fatal, f"{name} has no middle"
        return fatal

    def _die(self) -> NoReturn:
        if self.power is not None:
            # A disk writes the old before the new, more or less.
            draw = random.Random(self.power)
            safe = draw.randrange(len(self._unsynced) + 1)
            for lost in reversed(self._unsynced[safe:]):
                lost.undo(self._real, draw)
        os._exit(DEATH)

    def _note_write(self, name: str, args: tuple[Any, ...], length: int) -> None:
        if self.power is None:
            return
        handle = args[1] if name == "copy_file_range" else args[0]
        size = os.fstat(handle).st_size
        if name.startswith("pw"):
            start = args[2]
        else:
            appends = _flags(handle) & os.O_APPEND
            start = size if appends else os.lseek(handle, 0, os.SEEK_CUR)
        twin = self._real["open"](f"/proc/self/fd/{handle}", os.O_RDWR)
        self._unsynced.append(Lost(twin, start, os.pread(twin, length, start), size))

    def _note_truncation(self, name: str, args: tuple[Any, ...]) -> None:
        if self.power is None or name not in LENGTHS:
            return
        place = args[0] if name == "truncate" else f"/proc/self/fd/{args[0]}"
        twin = self._real["open"](place, os.O_RDWR)
        size = os.fstat(twin).st_size
        self._unsynced.append(Lost(twin, args[1], os.pread(twin, size, args[1]), size))

    def _settle(self, handle: int) -> None:
        synced = os.fstat(handle)
        kept = [
            lost for lost in self._unsynced if not os.path.samestat(os.fstat(lost.twin), synced)
        ]
        for lost in self._unsynced:
            if lost not in kept:
                os.close(lost.twin)
        self._unsynced = kept


@dataclass
class Lost:
    """What a power cut brings back: the bytes that were at a place of a file, and its size."""

    twin: int
    start: int
    old: bytes
    size: int | None = None

    def undo(self, real: dict[str, Callable[..., Any]], draw: random.Random) -> None:
        if draw.random() < 0.7:
            real["pwrite"](self.twin, self.old, self.start)
        if self.size is not None and draw.random() < 0.3:
            real["ftruncate"](self.twin, self.size)


def _on_disk(handle: int) -> bool:
    return stat.S_ISREG(os.fstat(handle).st_mode)


def _flags(handle: int) -> int:
    import fcntl

    return fcntl.fcntl(handle, fcntl.F_GETFL)


def _length(name: str, args: tuple[Any, ...]) -> int:
    if name == "sendfile":
        return min(int(args[3]), os.fstat(args[1]).st_size)
    if name == "copy_file_range":
        return min(int(args[2]), os.fstat(args[0]).st_size)
    if name.endswith("v"):
        return sum(memoryview(piece).nbytes for piece in args[1])
    return memoryview(args[1]).nbytes


def _halved(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    half = _length(name, args) // 2
    if name == "sendfile":
        return (*args[:3], half)
    if name == "copy_file_range":
        return (*args[:2], half, *args[3:])
    if name.endswith("v"):
        joined = b"".join(bytes(memoryview(piece).cast("B")) for piece in args[1])
        return (args[0], [joined[:half]], *args[2:])
    if _flags(args[0]) & _DIRECT:
        half = half // PAGE * PAGE  # a disk takes whole sectors
    return (args[0], memoryview(args[1]).cast("B")[:half], *args[2:])
