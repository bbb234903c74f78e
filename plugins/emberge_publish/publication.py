"""A model that is ready to be published, the repository on the hub, and the upload by huggingface_hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import EmbergeError, RecipeError
from emberge.wording import count_noun, format_size, join_some

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
FileBody = Path | bytes
"""A file to upload, or the bytes that it will have on the hub."""
# Files that hubs write into a repository themselves.
_HUB_FILES = (".gitattributes",)


class HubError(EmbergeError):
    """The error for a refusal or a failure of a hub."""


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The publisher's options; `licence` replaces the one that the card states."""

    name: str
    private: bool = False
    replace: bool = False
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class UploadResult:
    """The result of an upload: its commit, the model's page, the number of files, and their bytes."""

    commit: str
    url: str
    files: int
    size: int


@dataclass(frozen=True)
class HubRepository:
    """A repository on a hub: its last commit (None if it does not exist), and git's hashes of its files.

    Files in large-file storage have None for a hash.
    """

    commit: str | None = None
    blobs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Publication:
    """A model that is ready to be published: its files, its licence, and notes to the publisher."""

    options: PublishOptions
    files: Mapping[str, FileBody]
    licence: str | None
    notes: Sequence[str]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(_measure, self.files.values()))

    def list_lines(self, repository: HubRepository | None = None) -> Iterator[str]:
        """Yield lines for the terminal on what would be uploaded; a dry run has no `repository`."""
        if repository is None:
            yield f"{self.options.name}: what would be uploaded"
        else:
            created = f"will be created, {'private' if self.options.private else 'public'}"
            state = "is there" if repository.commit else created
            yield f"{_open_hub().endpoint}/{self.options.name} ({state})"
        width = max(map(len, self.files))
        for path, content in self.files.items():
            yield f"  {path:<{width}}  {format_size(_measure(content)):>9}"
        yield f"{count_noun(len(self.files), 'file')}, {format_size(self.size)}"
        yield f"licence {self.licence}" if self.licence else "no licence"
        if lost := self._list_others(repository or HubRepository()):
            yield f"deleted from the repository: {join_some(lost, 6)}"
        yield from (f"note: {note}" for note in self.notes)

    def read_repository(self) -> HubRepository:
        """Return the state of the repository that has the publication's name.

        Raises:
            HubError: if the hub refuses or fails.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._ask_hub() as hub:
            try:
                info = hub.model_info(self.options.name, files_metadata=True)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 404:
                    return HubRepository()
                raise
        files = [file for file in info.siblings or () if file.rfilename not in _HUB_FILES]
        return HubRepository(info.sha, {f.rfilename: None if f.lfs else f.blob_id for f in files})

    def equals(self, repository: HubRepository) -> bool:
        """Return whether the repository has exactly these files; the record's hashes stand for large ones."""
        return self.files.keys() == repository.blobs.keys() and all(
            blob is None or blob == _hash_blob(self.files[path])
            for path, blob in repository.blobs.items()
        )

    def require_free(self, repository: HubRepository) -> None:
        """Require that the upload replaces and deletes nothing, unless `replace` is set.

        Raises:
            RecipeError: if the repository has other content and `replace` is not set.
        """
        if repository.blobs and not self.options.replace and not self.equals(repository):
            raise RecipeError(
                f"{self.options.name}: the repository has other content already "
                f"({join_some([*repository.blobs], 4)}); choose another name, or give --replace, after which "
                "it has exactly the files above (its history keeps the others)"
            )

    def upload(self, repository: HubRepository) -> UploadResult:
        """Upload the files in one commit that deletes all others, and return the outcome.

        The hub's client sends no file that the hub has already.

        Raises:
            HubError: if the hub refuses or fails, or the repository has changed meanwhile.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        name = self.options.name
        if repository.commit is None:
            with self._ask_hub() as hub:
                hub.create_repo(name, private=self.options.private)
            repository = self.read_repository()
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(path, content) for path, content in self.files.items()),
            *(CommitOperationDelete(p, is_folder=False) for p in self._list_others(repository)),
        ]
        message, parent = "Publish with emberge", repository.commit
        with self._ask_hub("any file uploaded is kept; the same command sends the others") as hub:
            done = hub.create_commit(name, operations, commit_message=message, parent_commit=parent)
        return UploadResult(str(done.oid), f"{hub.endpoint}/{name}", len(self.files), self.size)

    def _list_others(self, repository: HubRepository) -> list[str]:
        """Return the paths in the repository that the publication does not have."""
        return [path for path in repository.blobs if path not in self.files]

    @contextmanager
    def _ask_hub(self, state: str = "nothing was uploaded") -> Iterator[HfApi]:
        """Yield the hub's client, and turn its errors in the block into a HubError that ends in `state`."""
        from huggingface_hub import errors

        try:
            yield _open_hub()
        except (errors.HfHubHTTPError, errors.HTTPError, OSError, RuntimeError) as error:  # type: ignore[attr-defined]
            reason = " ".join(str(error).split()) or type(error).__name__
            name = self.options.name
            raise HubError(f"{name}: the hub refused or failed ({reason}); {state}") from error


def _open_hub() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(library_name="emberge")


def _measure(content: FileBody) -> int:
    """Return a content's number of bytes."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _hash_blob(content: FileBody) -> str:
    """Return git's hash of a content."""
    data = content if isinstance(content, bytes) else content.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
