"""Publication of a model: its files and facts, their comparison with the hub's, and the upload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from emberge import Leaderboard, Plugins, RecipeError
from emberge.contracts import BoardEntry
from emberge.wording import code_span, join_some, printable, table_lines

from emberge_publish.ancestors import Ancestors
from emberge_publish.credentials import Content
from emberge_publish.hub_repository import FileOnHub, HubError, Remote, Repository
from emberge_publish.licences import Terms
from emberge_publish.training_summary import SUMMARY


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Options of the publisher; `licences` replace or supplement the licences that ancestors' cards state.

    `statements` are texts for sections of the summary of training data, by the sections' numbers.
    """

    name: str
    private: bool = False
    replace: bool = False
    licence: str | None = None
    licences: Mapping[str, str] = field(default_factory=dict)
    statements: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of an upload: the commit, the page, and the number of files sent and their bytes."""

    commit: str
    url: str
    files: int
    size: int


@dataclass(frozen=True)
class Publication:
    """Model that is ready to be published: files, licence, ancestors, scores and repository.

    `board` is the entry for leaderboards, `notes` are messages to the publisher.
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
        """Return every file with its state compared with the repository."""
        return plan_files(self.files, remote)

    def lines(self, planned: Sequence[PlannedFile], remote: Remote) -> Iterator[str]:
        """Yield the lines of the terminal that list what would be uploaded."""
        visibility = "private" if self.choices.private else "public"
        state = "is there" if remote.commit else f"will be created, {visibility}"
        yield f"{self.repository.url} ({state}), licence {self.terms.licence}"
        yield from list_files({(file.path, file.size): file.state for file in planned})
        to_send = [file for file in planned if file.state in ("new", "changed")]
        yield f"{len(to_send)} of {len(planned)} files to send, {shown_size(sum(o.size for o in to_send))}"
        yield from (f"note: {printable(note)}" for note in self.notes)

    def table(self) -> list[str]:
        """Return the lines of a Markdown table of the files with their sizes."""
        rows = [
            [code_span(path), shown_size(measure_content(content))]
            for path, content in self.files.items()
        ]
        return table_lines(["File", "Size"], rows, "lr")

    def preview(self) -> Iterator[str]:
        """Yield the lines of a dry run: files, licence with its reason, notes, card and training data."""
        sizes = {path: measure_content(content) for path, content in self.files.items()}
        yield f"{self.choices.name}: what would be uploaded"
        yield from list_files(dict.fromkeys(sizes.items(), ""))
        yield f"{len(sizes)} files, {shown_size(sum(sizes.values()))}"
        yield ""
        yield from self._explain_licence()
        yield from (f"note: {printable(note)}" for note in self.notes)
        for name in (CARD, SUMMARY):
            yield ""
            yield f"{name}:"
            text = self.files[name]
            assert isinstance(text, bytes)  # prepare draws it
            yield from (f"  {printable(line)}".rstrip() for line in text.decode().splitlines())

    def _explain_licence(self) -> Iterator[str]:
        yield f"licence {self.terms.licence}: {self.terms.reason}"
        for model in self.ancestors.models:
            declared = " (as you state)" if model.name in self.ancestors.declared else ""
            yield f"  model {printable(model.name)}: {printable(model.licence or 'unknown')}{declared}"
        for data in self.ancestors.data:
            yield f"  data {printable(data.name)}: {printable(data.licence or 'unknown')}"

    def require_free(self, planned: Sequence[PlannedFile]) -> None:
        """Check that the upload replaces or deletes nothing unless `replace` is set.

        Raises:
            RecipeError: if the repository has other content and `replace` is not set.
        """
        lost_paths = [file.path for file in planned if file.state in ("changed", "removed")]
        if lost_paths and not self.choices.replace:
            path_list = join_some(map(printable, lost_paths), 4)
            raise RecipeError(
                f"{self.choices.name}: the repository has other content already ({path_list}); "
                "choose another name, or give --replace, after which it has exactly the files above (its "
                "history keeps the others)"
            )

    def upload(self, planned: Sequence[PlannedFile], remote: Remote) -> Published:
        """Upload the files that differ in one commit, verify them on the hub, and return the outcome.

        Raises:
            HubError: if the hub refuses or fails, or has other bytes after the upload.
        """
        if remote.commit is None:
            remote = self.repository.create(self.choices.private)
            planned = self.planned(remote)
            self.require_free(planned)
        to_send = [file for file in planned if file.state in ("new", "changed")]
        removed = [file.path for file in planned if file.state == "removed"]
        commit = remote.commit or ""
        if to_send or removed:
            contents = {file.path: self.files[file.path] for file in to_send}
            commit = self.repository.commit(contents, removed, commit)
        self._require_uploaded(commit)
        return Published(
            commit, self.repository.url, len(to_send), sum(file.size for file in to_send)
        )

    def _require_uploaded(self, commit: str) -> None:
        uploaded = self.repository.read_state(commit)
        different = [file.path for file in self.planned(uploaded) if file.state != "same"]
        if different:
            raise HubError(
                f"{self.choices.name}: at commit {commit[:12]} the hub has other bytes of "
                f"{join_some(map(printable, different), 4)}; run this again with --replace"
            )

    def write_board(self, out: Path, commit: str | None) -> list[str]:
        """Write the entries of leaderboards and return their files; none for a model without embeddings."""
        if self.board.dimension is None or not (self.folder / "modules.json").is_file():
            return []
        out.mkdir(parents=True, exist_ok=True)
        entry = replace(self.board, revision=commit)
        boards: list[Leaderboard] = self.plugins.every("leaderboard")
        return [file for board in boards for file in board.write_entry(out, self.folder, entry)]


CARD = "README.md"
# Files that hubs write into a repository themselves.
_HUB_FILES = (".gitattributes",)
State = Literal["new", "changed", "same", "removed"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """File to publish: its path, size in bytes, and state compared with the repository."""

    path: str
    size: int
    state: State


def plan_files(files: Mapping[str, Content], remote: Remote) -> list[PlannedFile]:
    """Return every file with its state compared with the repository, then the repository's other files."""
    planned = [_plan_file(path, content, remote) for path, content in files.items()]
    hub_only = [path for path in remote.files if path not in files and path not in _HUB_FILES]
    return planned + [PlannedFile(path, remote.files[path].size, "removed") for path in hub_only]


def _plan_file(path: str, content: Content, remote: Remote) -> PlannedFile:
    size = measure_content(content)
    hub_file = remote.files.get(path)
    if hub_file is None:
        return PlannedFile(path, size, "new")
    is_same = hub_file.size == size and _is_same(content, size, hub_file)
    return PlannedFile(path, size, "same" if is_same else "changed")


def _is_same(content: Content, size: int, hub_file: FileOnHub) -> bool:
    """Return whether the content has the hub's hash: SHA-256 for a large file, git's for others."""
    is_large = hub_file.sha256 is not None
    digest = hashlib.sha256() if is_large else hashlib.sha1(usedforsecurity=False)
    if not is_large:
        digest.update(f"blob {size}\0".encode())
    if isinstance(content, bytes):
        digest.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest() == (hub_file.sha256 or hub_file.blob)


def measure_content(content: Content) -> int:
    """Return a content's number of bytes."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def list_files(states: Mapping[tuple[str, int], str]) -> Iterator[str]:
    """Yield an aligned line for each (path, size in bytes) with its state."""
    width = max(len(printable(path)) for path, _ in states)
    for (path, size), state in states.items():
        yield f"  {printable(path):<{width}}  {shown_size(size):>9}  {state}".rstrip()


def shown_size(size: float) -> str:
    """Return a number of bytes as text, with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
