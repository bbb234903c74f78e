"""Replies of models, kept by the content of the request, so that none is paid for twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emberge.files import UnsoundFileError, make_folder, read_json, write_json
from emberge.hashes import stable_hash

_REPLY_BYTES = 4 << 20


class NoReplyError(Exception):
    """The error for one request that gets no reply; others may get theirs."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A reply: its text, and why it ended (`stop`, `length`), "" if unknown."""

    text: str
    ended: str = ""


class KeptReplies:
    """The replies in a folder, a file for each, written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, request: Mapping[str, Any]) -> str:
        """Return the key of a request: a hash of all that decides the reply."""
        return stable_hash(request)

    def read(self, key: str) -> ModelReply | None:
        """Return the reply to a request; None if there is none, or its file is damaged."""
        try:
            reply = ModelReply(**read_json(self._locate(key), limit=_REPLY_BYTES))
        except (OSError, UnsoundFileError, ValueError, TypeError):
            return None
        is_text = isinstance(reply.text, str) and isinstance(reply.ended, str)
        return reply if is_text else None

    def write(self, key: str, reply: ModelReply) -> None:
        """Keep the reply to a request."""
        path = self._locate(key)
        make_folder(path.parent)
        write_json(path, asdict(reply))

    def _locate(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
