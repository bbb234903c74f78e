"""Ports that processes of this machine listen at, read from /proc."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LISTENING = "0A"


def listening(processes: Iterable[int]) -> dict[int, Address]:
    """The ports that any of these processes listens at, each with the address it is bound to."""
    theirs = {socket for process in processes for socket in _sockets(process)}
    found = {}
    for family in ("tcp", "tcp6"):
        for line in Path("/proc/net", family).read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == LISTENING and cells[9] in theirs:
                address, port = cells[1].split(":")
                found[int(port, 16)] = _address(address)
    return found


def with_children(process: int) -> set[int]:
    """A process and all that it has started, and they."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _sockets(process: int) -> Iterator[str]:
    try:
        for link in Path("/proc", str(process), "fd").iterdir():
            if match := re.fullmatch(r"socket:\[(\d+)]", os.readlink(link)):
                yield match[1]
    except OSError:  # it has ended, or closed it
        return


def _address(text: str) -> Address:
    """Four bytes at a time are written in the machine's order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address
