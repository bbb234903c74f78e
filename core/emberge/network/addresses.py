"""Addresses of models on servers, and the schemes that are read."""

from __future__ import annotations

from emberge.errors import CheckpointError

SCHEMES = ("https", "http", "s3", "gs", "hf")
KINDS = tuple(f"{scheme}://" for scheme in SCHEMES)


def is_address(text: str) -> bool:
    """Return whether a text is an address of a supported kind."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme in SCHEMES


def require_scheme(url: str) -> None:
    """Require that an address has a supported scheme.

    Raises:
        CheckpointError: if the scheme is another one.
    """
    if not is_address(url):
        raise CheckpointError(
            f"{url}: only {', '.join(KINDS)} are read; write a file's path without a scheme"
        )
