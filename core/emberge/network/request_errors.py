"""Errors of requests, temporary and permanent ones."""

from __future__ import annotations

from emberge.errors import CheckpointError


class UnreachableError(CheckpointError, ConnectionError):
    """A server that does not answer: no such name, no route, a refused connection, too many failures."""

    exit_code = 1


class ForbiddenAddressError(CheckpointError):
    """The error for an address that is not allowed: by scheme, redirect or private network."""


class UnsoundAnswerError(CheckpointError):
    """The error for an unusable answer: too long, too slow, compressed, or of another range."""


class RequestStoppedError(CheckpointError):
    """The error for a request that ended because the work around it did."""

    exit_code = 1


class StatusError(OSError):
    """The error for an unsuccessful HTTP status, with the seconds that the server asks to wait."""

    def __init__(self, url: str, status: int, wait: float = 0.0) -> None:
        super().__init__(f"{url}: it answers {status}")
        self.status, self.wait = status, wait
