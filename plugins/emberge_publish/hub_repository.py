"""Repository on a hub: reading of its files and upload in one commit, through huggingface_hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from emberge import EmbergeError, RecipeError

Content = Path | bytes
_Answer = TypeVar("_Answer")
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_REMEDIES = {
    401: "log in again with `hf auth login`",
    403: "take a token with write access for its owner",
    409: "it was changed meanwhile: look at it, and run this again",
    412: "it was changed meanwhile: look at it, and run this again",
}


class HubError(EmbergeError):
    """Refusal or failure of a hub."""


@dataclass(frozen=True, slots=True)
class FileOnHub:
    """File of a repository: its size in bytes, git hash, and SHA-256 if it is stored as a large file."""

    size: int
    blob: str
    sha256: str | None = None


@dataclass(frozen=True)
class Remote:
    """State of a repository: its last commit and files; `commit` is None if it does not exist."""

    commit: str | None = None
    files: Mapping[str, FileOnHub] = field(default_factory=dict)


class Repository:
    """Repository of models on the hub that the environment names (HF_ENDPOINT)."""

    def __init__(self, name: str) -> None:
        """Open the repository `owner/name`.

        Raises:
            RecipeError: if the name has another form.
        """
        from huggingface_hub import HfApi

        if not _NAME.fullmatch(name):
            raise RecipeError(f"'{name}' is no name of a model on a hub; write it as owner/name")
        self.name = name
        self.api = HfApi(library_name="emberge")

    @property
    def url(self) -> str:
        """Address of the repository's page."""
        return f"{self.api.endpoint}/{self.name}"

    def require_token(self) -> None:
        """Check that a user is logged in.

        Raises:
            HubError: if no user is logged in.
        """
        from huggingface_hub import get_token

        if not get_token():
            raise HubError(
                f"{self.name}: nobody is logged in at the hub; run `hf auth login` with a "
                "token that may write"
            )

    def read_state(self) -> Remote:
        """Return the repository's state; `commit` is None if it does not exist.

        Raises:
            HubError: if the hub refuses or fails.
        """
        return self._call_hub(self._read)

    def _read(self) -> Remote:
        from huggingface_hub.errors import RepositoryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        try:
            commit = self.api.model_info(self.name).sha
        except RepositoryNotFoundError as error:
            if error.response.status_code == 404:
                return Remote()
            raise
        tree = self.api.list_repo_tree(self.name, recursive=True, revision=commit)
        files = [entry for entry in tree if isinstance(entry, RepoFile)]
        return Remote(
            commit,
            {f.path: FileOnHub(f.size, f.blob_id, f.lfs.sha256 if f.lfs else None) for f in files},
        )

    def create(self, private: bool) -> Remote:
        """Create the repository if it does not exist, and return its state.

        Raises:
            HubError: if the hub refuses or fails.
        """
        self._call_hub(lambda: self.api.create_repo(self.name, private=private, exist_ok=True))
        return self.read_state()

    def commit(self, files: Mapping[str, Content], removed: Sequence[str], parent: str) -> str:
        """Upload files and delete others in one commit on `parent`, and return the commit's hash.

        Large files that an earlier, interrupted call uploaded are not sent again.

        Raises:
            HubError: if the hub refuses or fails, or the repository is no longer at `parent`.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(path, content) for path, content in files.items()),
            *(CommitOperationDelete(path, is_folder=False) for path in removed),
        ]
        done = self._call_hub(
            lambda: self.api.create_commit(
                self.name,
                operations,
                commit_message="Publish with emberge",
                parent_commit=parent,
            )
        )
        return str(done.oid)

    def _call_hub(self, call: Callable[[], _Answer]) -> _Answer:
        """Call the hub, and turn errors of its client into a HubError with the remedy."""
        from huggingface_hub import errors

        try:
            return call()
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            remedy = _REMEDIES.get(status, "run this again later; what was uploaded is kept")
            raise HubError(
                f"{self.name}: the hub answered {status} ({_take_first_line(error)}); {remedy}"
            ) from error
        except (errors.HTTPError, OSError, RuntimeError) as error:  # type: ignore[attr-defined]
            raise HubError(
                f"{self.name}: the upload broke off ({_take_first_line(error)}); run this again, and it "
                "goes on with what is missing"
            ) from error


def _take_first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
