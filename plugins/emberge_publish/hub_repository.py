"""Repository on a hub: reading of its files and upload in one commit, through huggingface_hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from emberge import EmbergeError, RecipeError
from emberge.network import call_again

from emberge_publish.credentials import Content, hide_credentials

if TYPE_CHECKING:
    from huggingface_hub import HfApi


_Answer = TypeVar("_Answer")
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
# Answers after which the same request may succeed; tries, and the longest wait for one in seconds.
_BUSY = (429, 500, 502, 503, 504)
_TRIES, _LONGEST_WAIT = 3, 120.0


class HubError(EmbergeError):
    """Refusal or failure of a hub; the message contains no token."""


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
        if not _NAME.fullmatch(name):
            raise RecipeError(f"'{name}' is no name of a model on a hub; write it as owner/name")
        self.name = name
        self.api: HfApi = _build_api()

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

    def read_state(self, revision: str | None = None) -> Remote:
        """Return the repository's state at a revision; `commit` is None if it does not exist.

        Raises:
            HubError: if the hub refuses or fails.
        """
        return self._call_hub(lambda: self._read(revision))

    def _read(self, revision: str | None) -> Remote:
        from huggingface_hub.errors import RepositoryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        try:
            commit = self.api.model_info(self.name, revision=revision).sha
        except RepositoryNotFoundError as error:
            if _find_status(error) == 404:
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

        Contents that an earlier, interrupted call uploaded are not sent again.

        Raises:
            HubError: if the hub refuses or fails, or the repository is no longer at `parent`.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        def send() -> Any:
            operations: list[CommitOperationAdd | CommitOperationDelete] = [
                *(
                    CommitOperationAdd(path, _convert_content(content))
                    for path, content in files.items()
                ),
                *(CommitOperationDelete(path, is_folder=False) for path in removed),
            ]
            return self.api.create_commit(
                self.name,
                operations,
                commit_message="Publish with emberge",
                parent_commit=parent,
            )

        return str(self._call_hub(send).oid)

    def _call_hub(self, call: Callable[[], _Answer]) -> _Answer:
        """Call the hub, retry while it asks to wait, and turn its errors into a HubError."""

        def wait_after(error: Exception, number: int) -> float:
            if isinstance(error, EmbergeError) or not _is_hub_error(error):
                raise error
            wait = _choose_wait(error, number)
            if wait is None or number == _TRIES:
                # Not chained: the original error may show the request with its token.
                raise HubError(hide_credentials(self._describe_error(error))) from None
            return wait

        return call_again(self.name, call, wait_after)

    def _describe_error(self, error: Exception) -> str:
        status = _find_status(error)
        reasons = {
            401: "the hub does not accept the token (401): log in again with `hf auth login`",
            403: "the token may not write here (403): take one with write access for "
            f"'{self.name.partition('/')[0]}'",
            404: "the hub has no such place (404): check the owner's name and the address in HF_ENDPOINT",
            409: "the repository was changed meanwhile (409): look at it, and run this again",
            412: "the repository was changed meanwhile (412): look at it, and run this again",
            429: "the hub asks to wait (429): run this again later; what was uploaded is kept",
        }
        if status is not None:
            reason = reasons.get(status, f"the hub answered {status}: {_take_first_line(error)}")
            return f"{self.name}: {reason}"
        cause = error.__cause__ or error
        return (
            f"{self.name}: the upload broke off ({type(cause).__name__}: {_take_first_line(cause)}); run "
            "this again, and it goes on with what is missing"
        )


def card_on_hub(name: str, revision: str | None) -> Path | None:
    """Return a folder with the card of a hub's model; None if it cannot be downloaded."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "README.md", revision=revision)).parent
    except Exception:  # no such model, no card, no network: unknown to the publisher all the same
        return None


def _build_api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(library_name="emberge")


def _convert_content(content: Content) -> str | bytes:
    return content if isinstance(content, bytes) else str(content)


def _find_status(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error or of its causes; None without one."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None and hasattr(response, "status_code"):
            return int(response.status_code)
        error = error.__cause__
    return None


def _is_hub_error(error: Exception) -> bool:
    """Return whether an error comes from the hub's answer, the connection or the hub's client."""
    return (
        _find_status(error) is not None
        or _is_connection_error(error)
        or isinstance(error, OSError | RuntimeError | ValueError)
    )


def _choose_wait(error: Exception, number: int) -> float | None:
    """Return the seconds to wait before a retry; None if a retry cannot help."""
    status = _find_status(error)
    if status is None:
        return 2.0**number / 2 if _is_connection_error(error) else None
    if status not in _BUSY:
        return None
    retry_after = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    return min(float(retry_after), _LONGEST_WAIT) if retry_after.isdigit() else 2.0**number / 2


def _is_connection_error(error: BaseException) -> bool:
    """Return whether the error is one of the HTTP library that the client uses."""
    cause = error.__cause__ or error
    return type(cause).__module__.partition(".")[0] in ("httpx", "httpx2", "requests")


def _take_first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
