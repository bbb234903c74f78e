"""Publication of a model: its files and facts, how they compare with the hub's, and the upload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from emberge import Leaderboard, Plugins, RecipeError
from emberge.contracts import BoardEntry
from emberge.wording import join_some, printable

from emberge_publish.ancestors import Ancestors
from emberge_publish.credentials import Content
from emberge_publish.hub_repository import FileOnHub, HubError, Remote, Repository
from emberge_publish.licences import Terms


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices of the publisher; `licences` are those of ancestors whose cards state none, or another."""

    name: str
    private: bool = False
    replace: bool = False
    licence: str | None = None
    licences: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of an upload: the commit, the page, and the number of files sent and their bytes."""

    commit: str
    url: str
    files: int
    size: int


@dataclass(frozen=True)
class Publication:
    """Model that is ready to be published: its files, licence, ancestors and scores, and its place on a hub.

    `board` is the entry for leaderboards, `notes` what the publisher should know.
    """

    choices: Choices
    repository: Repository
    folder: Path
    files: Mapping[str, Content]
    terms: Terms
    ancestors: Ancestors
    board: BoardEntry
    notes: Sequence[str]
    plugins: Plugins

    def planned(self, remote: Remote) -> list[PlannedFile]:
        """Return every file with its state beside what the repository has."""
        return plan_files(self.files, remote)

    def lines(self, planned: Sequence[PlannedFile], remote: Remote) -> Iterator[str]:
        """Yield what would be uploaded, for the terminal."""
        seen = "private" if self.choices.private else "public"
        where = "is there" if remote.commit else f"will be created, {seen}"
        yield f"{self.repository.url} ({where}), licence {self.terms.licence}"
        paths = [printable(one.path) for one in planned]
        width = max(map(len, paths))
        for one, path in zip(planned, paths, strict=True):
            yield f"  {path:<{width}}  {shown_size(one.size):>9}  {one.state}"
        sent = [one for one in planned if one.state in ("new", "changed")]
        yield f"{len(sent)} of {len(planned)} files to send, {shown_size(sum(o.size for o in sent))}"
        yield from (f"note: {printable(note)}" for note in self.notes)

    def require_free(self, planned: Sequence[PlannedFile]) -> None:
        """Make sure that no content of others is lost unasked.

        Raises:
            RecipeError: where the repository has other content and `replace` was not chosen.
        """
        lost = [one.path for one in planned if one.state in ("changed", "removed")]
        if lost and not self.choices.replace:
            shown = join_some(map(printable, lost), 4)
            raise RecipeError(
                f"{self.choices.name}: the repository has other content already ({shown}); "
                "choose another name, or give --replace, after which it has exactly the files above (its "
                "history keeps the others)"
            )

    def upload(self, planned: Sequence[PlannedFile], remote: Remote) -> Published:
        """Upload what differs, in one commit, and read back that the hub has it all.

        Raises:
            HubError: when the hub refuses, fails, or has other bytes afterwards.
        """
        if remote.commit is None:
            remote = self.repository.create(self.choices.private)
            planned = self.planned(remote)
            self.require_free(planned)
        new = [one for one in planned if one.state in ("new", "changed")]
        removed = [one.path for one in planned if one.state == "removed"]
        commit = remote.commit or ""
        if new or removed:
            sent = {one.path: self.files[one.path] for one in new}
            commit = self.repository.commit(sent, removed, commit)
        self._require_there(commit)
        return Published(commit, self.repository.url, len(new), sum(one.size for one in new))

    def _require_there(self, commit: str) -> None:
        there = self.repository.look(commit)
        wrong = [one.path for one in self.planned(there) if one.state != "same"]
        if wrong:
            raise HubError(
                f"{self.choices.name}: at commit {commit[:12]} the hub has other bytes of "
                f"{join_some(map(printable, wrong), 4)}; run this again with --replace"
            )

    def write_board(self, out: Path, commit: str | None) -> list[str]:
        """Write the entries of leaderboards and return their files; none for a model without embeddings."""
        if self.board.dimension is None or not (self.folder / "modules.json").is_file():
            return []
        out.mkdir(parents=True, exist_ok=True)
        entry = replace(self.board, revision=commit)
        boards: list[Leaderboard] = self.plugins.every("leaderboard")
        return [file for one in boards for file in one.write_entry(out, self.folder, entry)]


# Files that hubs write into a repository themselves.
_OF_THE_HUB = (".gitattributes",)
State = Literal["new", "changed", "same", "removed"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """File of the repository: its path, its bytes, and how it compares with what is there."""

    path: str
    size: int
    state: State


def plan_files(files: Mapping[str, Content], remote: Remote) -> list[PlannedFile]:
    """Return every file with its state beside what the repository has, and those that only it has."""
    found = [_plan_file(path, content, remote) for path, content in files.items()]
    left = [path for path in remote.files if path not in files and path not in _OF_THE_HUB]
    return found + [PlannedFile(path, remote.files[path].size, "removed") for path in left]


def _plan_file(path: str, content: Content, remote: Remote) -> PlannedFile:
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    there = remote.files.get(path)
    if there is None:
        return PlannedFile(path, size, "new")
    same = there.size == size and _is_same(content, size, there)
    return PlannedFile(path, size, "same" if same else "changed")


def _is_same(content: Content, size: int, there: FileOnHub) -> bool:
    """Compare by the hash that the hub has: of the bytes for a large file, git's for others."""
    large = there.sha256 is not None
    digest = hashlib.sha256() if large else hashlib.sha1(usedforsecurity=False)
    if not large:
        digest.update(f"blob {size}\0".encode())
    if isinstance(content, bytes):
        digest.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest() == (there.sha256 or there.blob)


def shown_size(size: float) -> str:
    """Return a number of bytes in three digits and a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
