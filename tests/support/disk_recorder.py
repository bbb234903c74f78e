"""Records what this process does to the files below a folder, for `power_cuts`.

Before each call that changes a name, and before each sync, the folder is compared with what it was: whatever
wrote meanwhile (Python, a library's C or Rust, `mmap`), it is seen. What lies between two looks has no order
in the log, and needs none, as nothing was synced between. Syncs are recorded and not done, which would only
take time; one that is not called through `os` is not seen, and then too little counts as safe, never
too much.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.power_cuts import (
    ROOT,
    Announced,
    Data,
    DiskLog,
    Kind,
    Made,
    Moved,
    Place,
    Removed,
    Sync,
)

# Events of `sys.addaudithook` that come right before a change of names or lengths.
_CHANGES = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SYNCS = ("fsync", "fdatasync")


@contextmanager
def syncs_skipped() -> Iterator[None]:
    """Have syncs do nothing, which saves time where nobody cuts the power."""
    real = {name: getattr(os, name) for name in _SYNCS}
    for name in _SYNCS:
        setattr(os, name, lambda _: None)
    try:
        yield
    finally:
        for name, one in real.items():
            setattr(os, name, one)


@dataclass(frozen=True, slots=True)
class _Found:
    """An entry of a folder: the number of its node on the real disk, its kind, and a link's target."""

    number: int
    kind: Kind
    target: str = ""


@dataclass
class _Known:
    """A name that the log has."""

    found: _Found
    node: int
    link: int


class _Hook:
    """The process's one audit hook, as none can be taken away; it serves the recorder that is active."""

    def __init__(self) -> None:
        self.active: DiskRecorder | None = None
        self.installed = False

    def serve(self, recorder: DiskRecorder) -> None:
        """Pass events to a recorder from now on."""
        assert self.active is None, "one recorder at a time"
        self.active = recorder
        if not self.installed:
            self.installed = True
            sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        recorder = self.active
        if recorder is None:
            return
        if event in _CHANGES or (event == "open" and args[2] & _WRITES):
            recorder.before(event, args)


_HOOK = _Hook()


@dataclass
class DiskRecorder:
    """A context in which everything that happens below `root` goes into `log`."""

    root: Path
    log: DiskLog = field(default_factory=DiskLog)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._names: dict[Place, _Known] = {}
        self._nodes: dict[int, int] = {}  # by their numbers on the real disk
        self._contents: dict[int, bytes] = {}
        self._gone: set[int] = set()  # numbers that the next file may get again
        self._count = 0
        self._real: dict[str, Callable[[int], None]] = {}

    def __enter__(self) -> DiskRecorder:
        self._nodes[os.stat(self.root).st_ino] = ROOT
        self.look()
        self.log.begin = len(self.log.operations)
        for name in _SYNCS:
            self._real[name] = getattr(os, name)
            setattr(os, name, self._sync)
        _HOOK.serve(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        _HOOK.active = None
        for name, real in self._real.items():
            setattr(os, name, real)

    def announce(self, what: str) -> None:
        """Note that the program told its user something at this moment."""
        self.look()
        self.log.operations.append(Announced(what))

    def before(self, event: str, args: tuple[Any, ...]) -> None:
        """Look at what has happened until a call that is about to change something."""
        with self._lock:
            self.look()
            if event == "open":
                self._will_open(args)
            elif event in ("os.remove", "os.rmdir"):
                self._will_go(args[0], args[1])
            elif event == "os.rename":
                self._will_go(args[1], args[3])

    def look(self) -> None:
        """Compare the disk with what is known of it, and log the difference."""
        with self._lock:
            self._compare(dict(self._entries(self.root, ROOT)))

    def _sync(self, handle: Any) -> None:
        with self._lock:
            self.look()
            number = os.fstat(handle).st_ino
            if number in self._nodes:
                self.log.operations.append(Sync(self._nodes[number]))

    def _entries(self, folder: Path, node: int) -> Iterator[tuple[Place, _Found]]:
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            place = (node, entry.name)
            number = entry.inode()
            if entry.is_symlink():
                yield place, _Found(number, "symlink", os.readlink(entry.path))
            elif entry.is_dir():
                yield place, _Found(number, "folder")
                known = self._names.get(place)
                same = known is not None and known.found.number == number
                own = known.node if known is not None and same else self._node_of(number)
                yield from self._entries(Path(entry.path), own)
            else:
                yield place, _Found(number, "file")

    def _node_of(self, number: int) -> int:
        """The node of a number on the real disk; a new one when it is new, or another file's now."""
        if number not in self._nodes or number in self._gone:
            self._gone.discard(number)
            self._count += 1
            self._nodes[number] = self._count
        return self._nodes[number]

    def _compare(self, now: dict[Place, _Found]) -> None:
        places: dict[int, list[Place]] = {}
        for place, found in now.items():
            places.setdefault(found.number, []).append(place)
        lost = {p: k for p, k in self._names.items() if now.get(p) != k.found}
        new = {p: f for p, f in now.items() if p not in self._names or p in lost}
        self._log_moves(lost, new)
        for place in sorted(lost, key=lambda one: -one[0]):
            known = lost[place]
            if self._names.get(place) is known:
                del self._names[place]
            if place not in new:  # else it was renamed over, or the next entry takes its place
                self.log.operations.append(Removed(place, known.link))
            if known.found.number not in places:
                self._nodes.pop(known.found.number, None)
                self._contents.pop(known.node, None)
        for place, found in new.items():
            self._count += 1
            known = _Known(found, self._node_of(found.number), self._count)
            self._names[place] = known
            self.log.operations.append(
                Made(place, known.node, known.link, found.kind, found.target)
            )
        self._gone.clear()
        self._log_data(now)

    def _log_moves(self, lost: dict[Place, _Known], new: dict[Place, _Found]) -> None:
        by_number = {known.found.number: place for place, known in lost.items()}
        for target, found in list(new.items()):
            source = by_number.get(found.number)
            if source is None or source not in lost or found.number in self._gone:
                continue
            known = lost.pop(source)
            del new[target], self._names[source]
            over = lost.pop(target, None)
            if over is not None:
                self._nodes.pop(over.found.number, None)
            self._names[target] = known
            self.log.operations.append(Moved(source, target, known.node, known.link))

    def _log_data(self, now: dict[Place, _Found]) -> None:
        paths = {ROOT: self.root}
        for place, found in now.items():
            known = self._names[place]
            path = paths[place[0]] / place[1]
            if found.kind == "folder":
                paths[known.node] = path
            elif found.kind == "file":
                content = path.read_bytes()
                if content != self._contents.get(known.node, b""):
                    self._contents[known.node] = content
                    self.log.operations.append(Data(known.node, content))

    def _will_open(self, args: tuple[Any, ...]) -> None:
        """Opening for writing empties a file before anything is written."""
        node = self._node_at(args[0]) if args[2] & os.O_TRUNC else None
        if node is not None and self._contents.get(node):
            self._contents[node] = b""
            self.log.operations.append(Data(node, b""))

    def _will_go(self, name: Any, folder: int) -> None:
        """What loses its last name leaves its number to what is made next."""
        try:
            status = os.stat(name, dir_fd=None if folder == -1 else folder, follow_symlinks=False)
        except OSError:
            return
        if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
            self._gone.add(status.st_ino)

    def _node_at(self, path: Any) -> int | None:
        try:
            return self._nodes.get(os.stat(path).st_ino)
        except (OSError, TypeError):
            return None
