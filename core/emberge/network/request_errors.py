"""Errors of requests, temporary and permanent ones."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from urllib.error import HTTPError, URLError

from emberge.errors import CheckpointError

# Failures of connecting for which another attempt would not help.
_PERMANENT = (ConnectionRefusedError, socket.gaierror, ssl.SSLError)


class UnreachableError(CheckpointError, ConnectionError):
    """A server that does not answer: no such name, a refused connection, too many failures."""

    exit_code = 1


class UnsoundAnswerError(CheckpointError):
    """The error for an unusable answer: too long, or of another range."""


class RequestStoppedError(CheckpointError):
    """The error for a request that ended because the work around it did."""

    exit_code = 1


@contextlib.contextmanager
def explain_failure(url: str) -> Iterator[None]:
    """Raise failures of a request in the block as OSErrors, and those that remain as UnreachableErrors.

    An HTTPError, which is an answer, is raised as it is.
    """
    try:
        yield
    except HTTPError:
        raise
    except URLError as error:
        reason = error.reason
        if isinstance(reason, _PERMANENT):
            raise UnreachableError(
                f"{url}: no connection ({reason}); see to the address and the server"
            ) from error
        raise (reason if isinstance(reason, OSError) else error) from None
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__} {error}".strip()) from error
