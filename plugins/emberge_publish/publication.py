"""Publication of a model: its files, their comparison with the hub's, and the upload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from emberge import RecipeError
from emberge.wording import code_span, join_some, table_lines

from emberge_publish.hub_repository import Content, FileOnHub, Remote, Repository


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Options of the publisher; `licence` replaces the one that the card states."""

    name: str
    private: bool = False
    replace: bool = False
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of an upload: the commit, the page, and the number of files sent and their bytes."""

    commit: str
    url: str
    files: int
    size: int


@dataclass(frozen=True)
class Publication:
    """Model that is ready to be published: its files, its licence, and notes to the publisher."""

    choices: Choices
    repository: Repository
    files: Mapping[str, Content]
    licence: str | None
    notes: Sequence[str]

    def planned(self, remote: Remote) -> list[PlannedFile]:
        """Return every file with its state compared with the repository."""
        return plan_files(self.files, remote)

    def lines(self, planned: Sequence[PlannedFile], remote: Remote) -> Iterator[str]:
        """Yield the lines of the terminal that list what would be uploaded."""
        visibility = "private" if self.choices.private else "public"
        state = "is there" if remote.commit else f"will be created, {visibility}"
        yield f"{self.repository.url} ({state}), {self.licence_words}"
        yield from list_files({(file.path, file.size): file.state for file in planned})
        to_send = [file for file in planned if file.state in ("new", "changed")]
        yield f"{len(to_send)} of {len(planned)} files to send, {shown_size(sum(o.size for o in to_send))}"
        yield from (f"note: {note}" for note in self.notes)

    @property
    def licence_words(self) -> str:
        """The licence in words."""
        return f"licence {self.licence}" if self.licence else "no licence"

    def table(self) -> list[str]:
        """Return the lines of a Markdown table of the files with their sizes."""
        rows = [
            [code_span(path), shown_size(measure_content(content))]
            for path, content in self.files.items()
        ]
        return table_lines(["File", "Size"], rows, "lr")

    def preview(self) -> Iterator[str]:
        """Yield the lines of a dry run: files, licence, notes and card."""
        sizes = {path: measure_content(content) for path, content in self.files.items()}
        yield f"{self.choices.name}: what would be uploaded"
        yield from list_files(dict.fromkeys(sizes.items(), ""))
        yield f"{len(sizes)} files, {shown_size(sum(sizes.values()))}"
        yield ""
        yield self.licence_words
        yield from (f"note: {note}" for note in self.notes)
        yield ""
        yield f"{CARD}:"
        card = self.files[CARD]
        assert isinstance(card, bytes)  # prepare completes it
        yield from (f"  {line}".rstrip() for line in card.decode().splitlines())

    def require_free(self, planned: Sequence[PlannedFile]) -> None:
        """Check that the upload replaces or deletes nothing unless `replace` is set.

        Raises:
            RecipeError: if the repository has other content and `replace` is not set.
        """
        lost_paths = [file.path for file in planned if file.state in ("changed", "removed")]
        if lost_paths and not self.choices.replace:
            path_list = join_some(lost_paths, 4)
            raise RecipeError(
                f"{self.choices.name}: the repository has other content already ({path_list}); "
                "choose another name, or give --replace, after which it has exactly the files above (its "
                "history keeps the others)"
            )

    def upload(self, planned: Sequence[PlannedFile], remote: Remote) -> Published:
        """Upload the files that differ in one commit, and return the outcome.

        Raises:
            HubError: if the hub refuses or fails.
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
        return Published(
            commit, self.repository.url, len(to_send), sum(file.size for file in to_send)
        )


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
    width = max(len(path) for path, _ in states)
    for (path, size), state in states.items():
        yield f"  {path:<{width}}  {shown_size(size):>9}  {state}".rstrip()


def shown_size(size: float) -> str:
    """Return a number of bytes as text, with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
