"""Errors of requests: those that a further attempt may mend, and those that it would not."""

from __future__ import annotations

from emberge.errors import CheckpointError


class UnreachableError(CheckpointError, ConnectionError):
    """A server that does not answer: no such name, no route, a refused connection, too many failures."""

    exit_code = 1


class ForbiddenAddressError(CheckpointError):
    """An address that is not asked: its scheme, a redirect elsewhere, a private network."""


class UnsoundAnswerError(CheckpointError):
    """An answer that no further attempt would mend: too long, too slow, compressed, another range."""


class RequestStoppedError(CheckpointError):
    """A request that was ended because the work around it was."""

    exit_code = 1


class StatusError(OSError):
    """An HTTP status other than that of success, with the seconds that the server asks to wait."""

    def __init__(self, url: str, status: int, wait: float = 0.0) -> None:
        super().__init__(f"{url}: it answers {status}")
        self.status, self.wait = status, wait
