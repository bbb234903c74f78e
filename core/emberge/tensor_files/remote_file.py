"""Notes of weights on a server: small files, `model.safetensors.remote`, that replace large ones.

A note contains all that a plan needs, including the header, so a checkpoint is described without the server.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from emberge.errors import CheckpointError
from emberge.files import read_json

_SUFFIX = ".remote"
# Limit of a note in bytes: the longest header in base64, and the other facts.
_LONGEST_NOTE = 140_000_000


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Facts of a safetensors file on a server at the time when they were read.

    `version` is the server's text that changes with the content: a hash, an ETag, a time. `sha256` is the
    hash of the whole file, if the server provides it. `header` contains the file's bytes before the tensors.
    """

    url: str
    size: int
    version: str
    sha256: str | None
    header: bytes

    @property
    def content(self) -> str:
        """Text that identifies the bytes: the hash, or without a hash the address, size and version."""
        return self.sha256 or f"{self.url} {self.size} {self.version}"

    def write(self, weights: Path) -> Path:
        """Write the note into the folder of the path that the weights would have, and return its path."""
        note = weights.with_name(weights.name + _SUFFIX)
        header = base64.b64encode(self.header).decode("ascii")
        note.write_text(json.dumps({**asdict(self), "header": header}, indent=1), encoding="utf-8")
        return note

    @staticmethod
    def is_note(path: Path) -> bool:
        """Return whether a path is a note's."""
        return path.suffix == _SUFFIX

    @staticmethod
    def find(path: Path) -> Path | None:
        """Return the path of a weight file, or of its note; None if neither exists."""
        note = path.with_name(path.name + _SUFFIX)
        return path if path.is_file() else note if note.is_file() else None

    @classmethod
    def read(cls, note: Path) -> RemoteFile:
        """Return the file that a note describes.

        Raises:
            CheckpointError: if the file is not a note.
        """
        try:
            facts = read_json(note, limit=_LONGEST_NOTE)
            return cls(**{**facts, "header": base64.b64decode(facts["header"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{note}: is no note of weights on a server ({type(error).__name__}); remove its folder, "
                "and it is made again"
            ) from None
