"""Publication of a model: its files, what a hub has already, and the upload through huggingface_hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import EmbergeError, RecipeError
from emberge.wording import human_size, join_some

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD, RECORD = "README.md", "artifact.json"
Content = Path | bytes
NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
# Files that hubs write into a repository themselves.
_HUB_FILES = (".gitattributes",)


class HubError(EmbergeError):
    """Refusal or failure of a hub."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Options of the publisher; `licence` replaces the one that the card states."""

    name: str
    private: bool = False
    replace: bool = False
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of an upload: the commit, the page, and the number of files and their bytes."""

    commit: str
    url: str
    files: int
    size: int


@dataclass(frozen=True)
class Remote:
    """Repository on a hub: its last commit, and git's hash of each file, None for large files.

    `commit` is None if it does not exist.
    """

    commit: str | None = None
    blobs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Publication:
    """Model that is ready to be published: its files, its licence, and notes to the publisher."""

    choices: Choices
    files: Mapping[str, Content]
    licence: str | None
    notes: Sequence[str]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(_measure, self.files.values()))

    def lines(self, remote: Remote | None = None) -> Iterator[str]:
        """Yield the lines of the terminal that list what would be uploaded; a dry run has no `remote`."""
        if remote is None:
            yield f"{self.choices.name}: what would be uploaded"
        else:
            created = f"will be created, {'private' if self.choices.private else 'public'}"
            yield f"{_open_hub().endpoint}/{self.choices.name} ({'is there' if remote.commit else created})"
        width = max(map(len, self.files))
        for path, content in self.files.items():
            yield f"  {path:<{width}}  {human_size(_measure(content)):>9}"
        yield f"{len(self.files)} files, {human_size(self.size)}"
        yield f"licence {self.licence}" if self.licence else "no licence"
        if lost := self._list_others(remote or Remote()):
            yield f"deleted from the repository: {join_some(lost, 6)}"
        yield from (f"note: {note}" for note in self.notes)

    def read_remote(self) -> Remote:
        """Return the repository's state.

        Raises:
            HubError: if the hub refuses or fails.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._ask_hub() as hub:
            try:
                info = hub.model_info(self.choices.name, files_metadata=True)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 404:
                    return Remote()
                raise
        files = [file for file in info.siblings or () if file.rfilename not in _HUB_FILES]
        return Remote(info.sha, {f.rfilename: None if f.lfs else f.blob_id for f in files})

    def is_in(self, remote: Remote) -> bool:
        """Return whether the repository has exactly these files, large ones by the hashes in the record."""
        return self.files.keys() == remote.blobs.keys() and all(
            blob is None or blob == _hash_blob(self.files[path])
            for path, blob in remote.blobs.items()
        )

    def require_free(self, remote: Remote) -> None:
        """Check that the upload replaces or deletes nothing unless `replace` is set.

        Raises:
            RecipeError: if the repository has other content and `replace` is not set.
        """
        if remote.blobs and not self.choices.replace and not self.is_in(remote):
            raise RecipeError(
                f"{self.choices.name}: the repository has other content already "
                f"({join_some([*remote.blobs], 4)}); choose another name, or give --replace, after which it "
                "has exactly the files above (its history keeps the others)"
            )

    def upload(self, remote: Remote) -> Published:
        """Upload the files in one commit that deletes all others, and return the outcome.

        The hub's client sends no file that the hub has already.

        Raises:
            HubError: if the hub refuses or fails, or somebody else changed the repository.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        name = self.choices.name
        if remote.commit is None:
            with self._ask_hub() as hub:
                hub.create_repo(name, private=self.choices.private)
            remote = self.read_remote()
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(path, content) for path, content in self.files.items()),
            *(CommitOperationDelete(path, is_folder=False) for path in self._list_others(remote)),
        ]
        with self._ask_hub() as hub:
            done = hub.create_commit(
                name, operations, commit_message="Publish with emberge", parent_commit=remote.commit
            )
        return Published(str(done.oid), f"{hub.endpoint}/{name}", len(self.files), self.size)

    def _list_others(self, remote: Remote) -> list[str]:
        """Return the files of the repository that are none of these."""
        return [path for path in remote.blobs if path not in self.files]

    @contextmanager
    def _ask_hub(self) -> Iterator[HfApi]:
        """Yield the hub's client, and turn its errors in the block into a HubError."""
        from huggingface_hub import errors

        try:
            yield _open_hub()
        except (errors.HfHubHTTPError, errors.HTTPError, OSError, RuntimeError) as error:  # type: ignore[attr-defined]
            reason = " ".join(str(error).split()) or type(error).__name__
            raise HubError(
                f"{self.choices.name}: the hub refused or failed ({reason}); what was uploaded is kept, so "
                "that the same command goes on with what is missing"
            ) from error


def _open_hub() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(library_name="emberge")


def _measure(content: Content) -> int:
    """Return a content's number of bytes."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _hash_blob(content: Content) -> str:
    """Return git's hash of a content."""
    data = content if isinstance(content, bytes) else content.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
