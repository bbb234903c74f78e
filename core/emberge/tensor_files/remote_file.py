"""Notes of weights on a server: small files in the place of large ones, `model.safetensors.remote`.

A note has all that a plan needs, the header included, so that a checkpoint is described without the server.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from emberge.errors import CheckpointError

__all__ = ["RemoteFile", "here_or_remote", "is_remote"]

_SUFFIX = ".remote"


def is_remote(path: Path) -> bool:
    """Return whether a path is that of a note of weights on a server."""
    return path.suffix == _SUFFIX


def here_or_remote(path: Path) -> Path | None:
    """Return the path of a file of weights, or that of the note in its place; None where there is neither."""
    note = path.with_name(path.name + _SUFFIX)
    return path if path.is_file() else note if note.is_file() else None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A safetensors file on a server, as it was when it was looked at.

    `version` is the text that the server changes with the content: a hash, an ETag, a time. `sha256` is the
    hash of the whole file where the server gives it. `header` are the bytes before those of tensors.
    """

    url: str
    size: int
    version: str
    sha256: str | None
    header: bytes

    @property
    def content(self) -> str:
        """The identity of the bytes: the hash, or address, size and version where there is no hash."""
        return self.sha256 or f"{self.url} {self.size} {self.version}"

    def write(self, place: Path) -> Path:
        """Write the note in the place of the file of weights, and return the note's path."""
        note = place.with_name(place.name + _SUFFIX)
        facts = {"url": self.url, "size": self.size, "version": self.version, "sha256": self.sha256}
        header = base64.b64encode(self.header).decode("ascii")
        note.write_text(json.dumps({**facts, "header": header}, indent=1), encoding="utf-8")
        return note

    @classmethod
    def read(cls, note: Path) -> RemoteFile:
        """Read a note.

        Raises:
            CheckpointError: for a file that is none.
        """
        try:
            facts = json.loads(note.read_text(encoding="utf-8"))
            header = base64.b64decode(facts["header"], validate=True)
            sha256 = facts["sha256"]
            return cls(
                str(facts["url"]),
                int(facts["size"]),
                str(facts["version"]),
                None if sha256 is None else str(sha256),
                header,
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{note}: is no note of weights on a server ({type(error).__name__}); remove its folder, "
                "and it is made again"
            ) from None
