"""Publication of a model: its files and facts, how they compare with the hub's, and the upload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from emberge import Leaderboard, Plugins, RecipeError
from emberge.contracts import BoardEntry
from emberge.wording import join_some, printable

from emberge_publish.ancestors import Ancestors
from emberge_publish.credentials import Content
from emberge_publish.hub_repository import HubError, Remote, Repository
from emberge_publish.licences import Terms
from emberge_publish.planned_files import PlannedFile, plan_files, shown_size


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
