"""A disk in memory that records all that any program does to it, for `power_cuts`: a FUSE file system.

It sees what the kernel sees, whatever language a call came from, so it is a witness of `disk_recorder`. It
speaks the kernel's protocol by itself and needs `/dev/fuse` and the right to mount, as root has it and
everyone in a namespace of `unshare --map-root-user --mount`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import stat
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.power_cuts import (
    ROOT,
    Data,
    DiskLog,
    Kind,
    Made,
    Moved,
    Removed,
    Sync,
)

_HEADER = struct.Struct("<IIQQIIIHH")
_OPEN = struct.pack("<QIi", 0, 0, 0)
_BIG_WRITES = 1 << 5
_SIZE = 1 << 3  # of the bits that name what SETATTR sets
_MODES: dict[Kind, int] = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "symlink": stat.S_IFLNK}
_FOREVER = 1 << 20  # seconds that the kernel may keep names: nobody else changes them


@contextmanager
def mounted(place: Path, log: Path) -> Iterator[None]:
    """Mount an empty disk at the folder `place`; its DiskLog is in the file `log` when it is gone.

    Raises:
        OSError: where mounting is not allowed.
    """
    handle = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={handle},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"recorded", os.fsencode(place), b"fuse", 0, options.encode()):
        os.close(handle)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    server = os.fork()
    if not server:
        code = 1
        try:
            disk = _Disk(handle)
            disk.serve()
            log.write_bytes(pickle.dumps(disk.log))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(handle)
    try:
        yield
    finally:
        libc.umount2(os.fsencode(place), 2)  # as soon as nothing is open
        ended = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    assert ended == 0, "the disk's process failed"


@dataclass
class _Node:
    number: int
    kind: Kind
    content: bytearray = field(default_factory=bytearray)
    entries: dict[str, tuple[_Node, int]] = field(default_factory=dict)
    """Nodes in a folder by their names, and each name's identity."""
    links: int = 1


class _Disk:
    """A file system's nodes, and answers to the kernel's requests by their numbers."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.log = DiskLog()
        self._nodes = [_Node(ROOT, "folder")]
        self._links = 0
        self._answers: dict[int, Callable[[_Node, bytes], bytes | None]] = {
            1: self._look_up,
            3: lambda node, _: self._attributes(node),
            4: self._set_attributes,
            5: lambda node, _: bytes(node.content),
            6: self._symlink,
            8: lambda node, data: self._entry(self._make(node, data[16:], "file")),
            9: lambda node, data: self._entry(self._make(node, data[8:], "folder")),
            10: self._remove,
            11: self._remove,
            12: lambda node, data: self._rename(node, data[:8], data[8:]),
            13: self._link,
            14: lambda _node, _: _OPEN,
            15: self._read,
            16: self._write,
            17: lambda _node, _: struct.pack("<5Q4I24x", *[1 << 30] * 5, 4096, 255, 4096, 0),
            18: lambda _node, _: b"",
            20: self._sync,
            25: lambda _node, _: b"",
            27: lambda _node, _: _OPEN,
            28: self._list,
            29: lambda _node, _: b"",
            30: self._sync,
            35: lambda node, data: self._entry(self._make(node, data[16:], "file")) + _OPEN,
            45: lambda node, data: self._rename(node, data[:8], data[16:]),
        }

    def serve(self) -> None:
        """Answer requests until the disk is unmounted."""
        while True:
            try:
                request = os.read(self.handle, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT):  # a request was taken back
                    continue
                raise
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, kind, unique, number, *_ = _HEADER.unpack_from(request)
        data = request[_HEADER.size :]
        if kind in (2, 36, 42):  # forgetting and interrupting want no answer
            return
        code, answer = 0, b""
        try:
            if kind == 26:
                limits = (1 << 17, _BIG_WRITES, 0, 0, 1 << 17)
                answer = struct.pack("<4I2H2I36x", 7, 31, *limits, 1)
            elif kind in self._answers:
                answer = self._answers[kind](self._nodes[number - 1], data) or b""
            else:
                code = errno.ENOSYS
        except OSError as error:
            code = error.errno or errno.EIO
        answer = b"" if code else answer
        try:
            os.write(self.handle, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
        except OSError as error:  # nobody waits for the answer, as in the middle of unmounting
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    # ── names ───────────────────────────────────────────────────────────────────────────────────

    def _look_up(self, node: _Node, data: bytes) -> bytes:
        return self._entry(_find(node, _name(data))[0])

    def _make(self, folder: _Node, name: bytes, kind: Kind, target: str = "") -> _Node:
        node = _Node(len(self._nodes), kind, bytearray(target.encode()))
        self._nodes.append(node)
        self._name(folder, _name(name), node, target)
        return node

    def _name(self, folder: _Node, name: str, node: _Node, target: str = "") -> None:
        self._links += 1
        folder.entries[name] = node, self._links
        made = Made((folder.number, name), node.number, self._links, node.kind, target)
        self.log.operations.append(made)

    def _symlink(self, folder: _Node, data: bytes) -> bytes:
        name, target = data.split(b"\0")[:2]
        return self._entry(self._make(folder, name, "symlink", target.decode()))

    def _link(self, folder: _Node, data: bytes) -> bytes:
        node = self._nodes[int.from_bytes(data[:8], "little") - 1]
        node.links += 1
        self._name(folder, _name(data[8:]), node)
        return self._entry(node)

    def _remove(self, folder: _Node, data: bytes) -> None:
        name = _name(data)
        node, link = _find(folder, name)
        if node.entries:
            raise OSError(errno.ENOTEMPTY, name)
        del folder.entries[name]
        node.links -= 1
        self.log.operations.append(Removed((folder.number, name), link))

    def _rename(self, folder: _Node, target: bytes, data: bytes) -> None:
        old, new = (name.decode() for name in data.split(b"\0")[:2])
        to = self._nodes[int.from_bytes(target, "little") - 1]
        node, link = _find(folder, old)
        if new in to.entries and to.entries[new][0].entries:
            raise OSError(errno.ENOTEMPTY, new)
        del folder.entries[old]
        to.entries[new] = node, link
        moved = Moved((folder.number, old), (to.number, new), node.number, link)
        self.log.operations.append(moved)

    def _list(self, node: _Node, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        found = b""
        for place, (name, (one, _)) in enumerate(node.entries.items(), 1):
            raw = name.encode()
            entry = struct.pack("<QQII", one.number + 1, place, len(raw), _MODES[one.kind] >> 12)
            entry += raw.ljust(-(-len(raw) // 8) * 8, b"\0")
            if place > offset and len(found) + len(entry) <= size:
                found += entry
        return found

    # ── data ────────────────────────────────────────────────────────────────────────────────────

    def _read(self, node: _Node, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        return bytes(node.content[offset : offset + size])

    def _write(self, node: _Node, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        node.content.extend(bytes(max(0, offset - len(node.content))))
        node.content[offset : offset + size] = data[40 : 40 + size]
        self.log.operations.append(Data(node.number, bytes(node.content)))
        return struct.pack("<II", size, 0)

    def _set_attributes(self, node: _Node, data: bytes) -> bytes:
        which, _, _, size = struct.unpack_from("<IIQQ", data)
        if which & _SIZE:
            del node.content[size:]
            node.content.extend(bytes(size - len(node.content)))
            self.log.operations.append(Data(node.number, bytes(node.content)))
        return self._attributes(node)

    def _sync(self, node: _Node, _: bytes) -> None:
        self.log.operations.append(Sync(node.number))

    # ── answers ─────────────────────────────────────────────────────────────────────────────────

    def _entry(self, node: _Node) -> bytes:
        kept = struct.pack("<4QII", node.number + 1, 0, _FOREVER, _FOREVER, 0, 0)
        return kept + _status(node)

    def _attributes(self, node: _Node) -> bytes:
        return struct.pack("<QII", _FOREVER, 0, 0) + _status(node)


def _status(node: _Node) -> bytes:
    size = len(node.content)
    counts = (node.number + 1, size, size // 512 + 1)
    mode = _MODES[node.kind] | 0o777
    owner = (mode, node.links, os.getuid(), os.getgid())
    return struct.pack("<3Q36x7I", *counts, *owner, 0, 4096, 0)


def _find(folder: _Node, name: str) -> tuple[_Node, int]:
    if name not in folder.entries:
        raise OSError(errno.ENOENT, name)
    return folder.entries[name]


def _name(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode()
