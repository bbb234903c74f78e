"""Disks as a power cut may leave them, made from the log of what a program did to its disk.

A kill leaves the page cache behind, so it proves nothing of `fsync`; what it leaves is one of the disks
here, on which all has happened. A log of operations, which `disk_recorder` has recorded, is cut after each
of them, and what was not yet safe is dropped, reordered or torn. The disk has these rules, which are
stricter than those of ext4, XFS or btrfs:

Data
    What is in a file is safe once `fsync` or `fdatasync` of that file has returned. Of what was written
    since, any sector of 512 bytes may be there in any of its versions, also the later without the earlier.
    The length is that after any of the writes, and independent of the data: where a file is longer than
    its data, it is full of zeros. So a file that was renamed and never synced may be empty, all zeros, or
    cut. The sync of a file says nothing of its name.

Names
    Creating, removing, linking and renaming change entries of folders. A change is safe once its folder was
    synced, a renaming once that of the new name was. Of the changes since, any subset may have happened, in
    one folder as in several: order protects nothing. A renaming happens whole or not at all. A folder
    whose entry is lost is lost with all that was synced in it; removing an entry that is not there, because
    the change that put it there was lost, does nothing. The target of a symbolic link comes with its entry.

Not modelled are disks that report a sync too early, damage to what was safe, times and permissions.

A cut after operation n with any subset of its unsafe changes is also a cut right before the next sync, with a
smaller subset. So subsets are drawn right before syncs and announcements, and at other places only those
that programs fall over most: all of it, no data, zeros for data, the last write torn.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

SECTOR = 512
ROOT = 0
Kind = Literal["file", "folder", "symlink"]
Place = tuple[int, str]
"""A name in a folder: the folder's node and the name."""


@dataclass(frozen=True, slots=True)
class Made:
    """A name was given to a node; `link` is the name's identity, which a renaming keeps."""

    place: Place
    node: int
    link: int
    kind: Kind
    target: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """A name was taken away."""

    place: Place
    link: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A name was changed; another node at `target` lost its name by it."""

    source: Place
    target: Place
    node: int
    link: int


@dataclass(frozen=True, slots=True)
class Data:
    """A file's whole content after a write or a change of its length."""

    node: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sync:
    """A file's data, or a folder's entries, were made safe."""

    node: int


@dataclass(frozen=True, slots=True)
class Announced:
    """The program told its user that something is done, on which the user may now rely."""

    what: str


Operation = Made | Removed | Moved | Data | Sync | Announced


class Item(NamedTuple):
    """What is at a path: a file's content or a symbolic link's target; equal nodes are hard links."""

    kind: Kind
    node: int
    content: bytes = b""


Tree = Mapping[str, Item]


@dataclass
class DiskLog:
    """All that was done to a disk; the first `begin` operations made it as it was before, and are safe."""

    operations: list[Operation] = field(default_factory=list, repr=False)
    begin: int = 0

    def cuts(
        self,
        *,
        seed: int = 0,
        draws: int = 3,
        everywhere: bool = False,
        singles: bool = True,
        most: int | None = None,
    ) -> Iterator[Cut]:
        """Yield each different disk that a power cut may leave, as far as the module's text says.

        `draws` random subsets are taken right before each sync, with `everywhere` after each operation;
        `singles` are the subsets in which one change alone is lost, or one alone has happened. With `most`
        so many of all disks are drawn, the first and the last always, the others the same each time.
        """
        found = self._cuts(random.Random(seed), draws, everywhere, singles)
        if most is None:
            return found
        every = list(found)
        if len(every) <= most:
            return iter(every)
        between = random.Random(seed).sample(range(1, len(every) - 1), most - 2)
        return (every[number] for number in (0, *sorted(between), len(every) - 1))

    def _cuts(
        self, draw: random.Random, draws: int, everywhere: bool, singles: bool
    ) -> Iterator[Cut]:
        seen: set[tuple[bytes, int]] = set()
        for end in range(self.begin, len(self.operations) + 1):
            moment = Moment(self, end)
            following = self.operations[end : end + 1]
            full = everywhere or not following or isinstance(following[0], Sync | Announced)
            safe = moment.tree(frozenset(), _oldest)
            for variant, tree in moment.variants(draw, draws if full else 0, singles and full):
                key = (_digest(tree), len(moment.announced))
                if key not in seen:
                    seen.add(key)
                    yield Cut(end, variant, tree, safe, moment.announced)

    def faults(
        self, judge: Callable[[Cut], Iterable[str]], cuts: Iterable[Cut] | None = None, **how: Any
    ) -> str:
        """Return what `judge` finds wrong with disks of power cuts, a line each; nothing is well.

        The disks are `cuts`, or all that the method of that name yields; it ends with the ninth fault.
        """
        found = (fault for cut in cuts or self.cuts(**how) for fault in judge(cut))
        return "\n".join(islice(found, 9))

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Yield each change of names and each sync with the paths it was done to, as people read them."""
        homes: dict[int, Place] = {}

        def path(node: int) -> str:
            parts: list[str] = []
            while node != ROOT:
                node, name = homes[node]
                parts.insert(0, name)
            return "/".join(parts) or "."

        def at(place: Place) -> str:
            return f"{path(place[0])}/{place[1]}".removeprefix("./")

        for number, one in enumerate(self.operations):
            found: tuple[str, ...] = ()
            match one:
                case Made(place, node, _, kind):
                    homes.setdefault(node, place)
                    found = (f"make {kind}", at(place))
                case Removed(place):
                    found = ("remove", at(place))
                case Moved(source, target, node):
                    found = ("rename", at(source), at(target))
                    homes[node] = target
                case Sync(node):
                    found = ("sync", path(node))
            if found and number >= self.begin:
                yield found


class Moment:
    """The disk's state after some operations: what is safe, and what is not."""

    def __init__(self, log: DiskLog, end: int) -> None:
        self.operations = log.operations[:end]
        synced: dict[int, int] = {}
        for number, one in enumerate(self.operations):
            if isinstance(one, Sync):
                synced[one.node] = number
        self.unsafe: list[int] = []
        self.versions: dict[int, list[bytes]] = {}
        for number, one in enumerate(self.operations):
            safe = number < log.begin
            match one:
                case Made() | Removed():
                    safe = safe or number < synced.get(one.place[0], -1)
                case Moved():
                    safe = safe or number < synced.get(one.target[0], -1)
                case Data(node, content):
                    safe = safe or number < synced.get(node, -1)
                    old = [] if safe else self.versions.get(node, [b""])
                    self.versions[node] = [*old, content]
                    continue
                case _:
                    continue
            if not safe:
                self.unsafe.append(number)
        self.announced = tuple(
            one.what for one in self.operations[log.begin :] if isinstance(one, Announced)
        )

    @property
    def dirty(self) -> list[int]:
        """The files that have data which is not safe."""
        return [node for node, versions in self.versions.items() if len(versions) > 1]

    def variants(
        self, draw: random.Random, draws: int, singles: bool
    ) -> Iterator[tuple[str, Tree]]:
        """Yield disks that a cut may leave at this moment, with words for what became of the unsafe."""
        every, none = frozenset(self.unsafe), frozenset[int]()
        yield "all happened", self.tree(every, _newest)
        yield "nothing happened", self.tree(none, _oldest)
        yield "names without data", self.tree(every, _oldest)
        yield "zeros for data", self.tree(every, _zeros)
        yield "data without names", self.tree(none, _newest)
        last = self.operations[-1] if self.operations else None
        if isinstance(last, Data) and last.node in self.dirty:
            for torn in _tears(*self.versions[last.node][-2:]):
                yield "the last write torn", self.tree(every, self.but(last.node, torn))
        if singles:
            yield from self._singles(every)
        for number in range(draws):
            chosen = frozenset(
                one for one in self.unsafe if draw.random() < draw.choice((0.3, 0.8))
            )
            yield f"draw {number}", self.tree(chosen, lambda _, v: _mixed(v, draw))

    def _singles(self, every: frozenset[int]) -> Iterator[tuple[str, Tree]]:
        for number in self.unsafe:
            one = self.operations[number]
            yield f"without {one}", self.tree(every - {number}, _newest)
            yield f"only {one}", self.tree(frozenset({number}), _newest)
        for node in self.dirty:
            versions = self.versions[node]
            yield f"no data of {node}", self.tree(every, self.but(node, versions[0]))
            yield f"zeros in {node}", self.tree(every, self.but(node, _zeros(node, versions)))

    @staticmethod
    def but(node: int, content: bytes) -> Choice:
        """Choose this content for one file, and the newest for all others."""
        return lambda one, versions: content if one == node else versions[-1]

    def tree(self, chosen: frozenset[int], choice: Choice) -> Tree:
        """Return the disk on which the safe and the chosen changes of names have happened."""
        entries: dict[Place, Made | Moved] = {}
        homes: dict[int, Place] = {}
        kinds: dict[int, tuple[Kind, str]] = {}
        lost = {*self.unsafe} - chosen
        for number, one in enumerate(self.operations):
            if isinstance(one, Made):
                kinds[one.node] = (one.kind, one.target)
            if number in lost or not isinstance(one, Made | Removed | Moved):
                continue
            home = homes.pop(one.link, None)
            if isinstance(one, Removed):
                if home == one.place:
                    del entries[home]
                elif (
                    home is not None
                ):  # the renaming to this name was lost, and the old name is there
                    homes[one.link] = home
                continue
            if home is not None:
                del entries[home]
            place = one.place if isinstance(one, Made) else one.target
            if place in entries:
                homes.pop(entries[place].link, None)
            entries[place] = one
            homes[one.link] = place
        inside: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), entry in entries.items():
            inside.setdefault(folder, []).append((name, entry.node))
        data = {node: choice(node, versions) for node, versions in self.versions.items()}
        return dict(_walk(inside, kinds, data))


Choice = Callable[[int, Sequence[bytes]], bytes]
"""From a file and the versions of its content, the safe one first, to what is found of it."""


def _walk(
    inside: Mapping[int, list[tuple[str, int]]],
    kinds: Mapping[int, tuple[Kind, str]],
    data: Mapping[int, bytes],
    folder: int = ROOT,
    prefix: str = "",
) -> Iterator[tuple[str, Item]]:
    for name, node in sorted(inside.get(folder, ())):
        kind, target = kinds[node]
        content = data.get(node, b"") if kind == "file" else target.encode()
        yield prefix + name, Item(kind, node, content)
        if kind == "folder":
            yield from _walk(inside, kinds, data, node, f"{prefix}{name}/")


def _newest(_: int, versions: Sequence[bytes]) -> bytes:
    return versions[-1]


def _oldest(_: int, versions: Sequence[bytes]) -> bytes:
    return versions[0]


def _zeros(_: int, versions: Sequence[bytes]) -> bytes:
    """The newest length, and no more than the safe data."""
    return _cut(versions[0], len(versions[-1]))


def _cut(content: bytes, length: int) -> bytes:
    return content[:length].ljust(length, b"\0")


def _tears(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield what a write leaves that ends at its first, middle or last sector, with either length."""
    end = max(len(old), len(new))
    changed = [at for at in range(0, end, SECTOR) if old[at : at + SECTOR] != new[at : at + SECTOR]]
    for at in sorted({changed[0], changed[len(changed) // 2], changed[-1]}):
        yield new[:at] + old[at:]
        yield _cut(new[:at] + old[at:], len(new))


def _mixed(versions: Sequence[bytes], draw: random.Random) -> bytes:
    """Any version of each sector, in a length that there was, also in the middle of a write."""
    if len(versions) == 1:
        return versions[0]
    after = draw.randrange(1, len(versions))
    low, high = sorted((len(versions[after - 1]), len(versions[after])))
    between = range(low - low % SECTOR + SECTOR, high, SECTOR)
    length = draw.choice([low, high, draw.choice(between or [high])])
    pieces = (
        _cut(draw.choice(versions)[at : at + SECTOR], SECTOR) for at in range(0, length, SECTOR)
    )
    return b"".join(pieces)[:length]


@dataclass(frozen=True)
class Cut:
    """A disk after a power cut behind `end` operations, what of it was safe, and what was announced."""

    end: int
    variant: str
    tree: Tree = field(repr=False)
    safe: Tree = field(repr=False)
    announced: tuple[str, ...] = ()

    def restore(self, folder: Path) -> Path:
        """Make the disk anew as the contents of a folder, and return that."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        first: dict[int, Path] = {}
        for name, item in self.tree.items():
            path = folder / name
            if item.kind == "folder":
                path.mkdir()
            elif item.kind == "symlink":
                path.symlink_to(item.content.decode())
            elif item.node in first:
                os.link(first[item.node], path)
            else:
                path.write_bytes(item.content)
                first[item.node] = path
        return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder by its path; of other entries what they are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + os.readlink(path).encode()
        else:
            found[name] = path.read_bytes() if path.is_file() else b"folder"
    return found


def _digest(tree: Tree) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for name, item in tree.items():
        for part in (name.encode(), item.kind.encode(), item.content):
            found.update(len(part).to_bytes(8, "little"))
            found.update(part)
    return found.digest()
